"""The end of `shoal up`: the base model and the demo tenants' adapters answer one question, streamed over HTTPS."""

import time

from rich.console import Console
from rich.markup import escape

from functions.cli.answers import Asker, Chat, NotYet
from functions.cli.place import Place
from functions.cli.refused import Refused
from functions.controller.local.prepare.demo_keys import read_demo_keys

QUESTION = "What is the capital of France?"
MAX_TOKENS = 32
NEWS_TRAVELS_S = 20.0  # from an agent that has loaded an adapter, by way of its heartbeat, to the gateway
RETRY_S = 0.3
MAX_SHOWN = 10  # an installation may have thousands: these show that it works


def show_first_answers(place: Place, asker: Asker, console: Console) -> None:
    """Refused where one of them does not answer: then the fleet is not up, whatever the probes say."""
    console.print(f"\n[bold]{QUESTION}[/]  [dim]{place.gateway_url}/v1/chat/completions[/]")
    shown: set[str] = set()
    for tenant, key in sorted(read_demo_keys(place.layout).items()):
        for model in sorted(asker.models(key.key), key=lambda model: ("/" in model, model)):
            if model not in shown and len(shown) < MAX_SHOWN:
                shown.add(model)
                _show(asker, console, tenant, model, key.key)
    if not shown:
        raise Refused("no model can be called: see `shoal status` for what is wrong with the configuration")


def _show(asker: Asker, console: Console, tenant: str, model: str, key: str) -> None:
    console.print(f"  [cyan]{escape(model)}[/] [dim]({escape(tenant)})[/] ", end="")
    deadline_s = time.monotonic() + NEWS_TRAVELS_S
    while True:
        try:
            first_ms = _stream(asker, console, model, key)
            break
        except NotYet:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(RETRY_S)
    console.print(f"  [dim]{first_ms:.0f} ms to the first token[/]")


def _stream(asker: Asker, console: Console, model: str, key: str) -> float:
    """Print the answer as it comes; milliseconds to its first piece."""
    started_s = time.monotonic()
    first_ms = 0.0
    for text in asker.stream(Chat(model, [{"role": "user", "content": QUESTION}], max_tokens=MAX_TOKENS), key):
        first_ms = first_ms or (time.monotonic() - started_s) * 1000
        console.print(text.replace("\n", " "), end="", soft_wrap=True, markup=False)
    return first_ms
