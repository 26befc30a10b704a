"""`shoal chat`, and a gateway client that works like any other client: HTTPS, an API key, streaming.

The prompt comes from an option, from standard input, or from a conversation on the terminal. Answers use the standard
chat route and are yielded in pieces.
"""

import json
import ssl
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx

from functions.api.ids import DEFAULT_CHANNEL
from functions.cli.context import CliContext, current_context
from functions.cli.refused import CommandRefused
from functions.controller.local.prepare.secret_files import DemoKey, read_demo_keys

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 120.0  # long enough for the first token of a long prompt on a busy CPU
MAX_EVENT_CHARS = 1024 * 1024
_NOT_NOW = frozenset({429, 503})  # just after the bus starts, remaining quota is not known yet


class NotYet(CommandRefused):
    """The gateway cannot serve the request now (429, 503). A retry may succeed."""


@dataclass(frozen=True, slots=True)
class ChatCall:
    model: str
    messages: list[dict[str, str]]
    max_tokens: int = 64
    temperature: float = 0.0


@dataclass(slots=True)
class GatewayClient:
    context: CliContext
    _client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        if not self.context.layout.ca_file.is_file():
            raise CommandRefused(f"there is no fleet in {self.context.layout.root}: start one with `shoal up`")
        verify = ssl.create_default_context(cafile=str(self.context.layout.ca_file))
        timeout = httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        self._client = httpx.Client(verify=verify, timeout=timeout, trust_env=False)

    def __enter__(self) -> "GatewayClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def models(self, key: str) -> dict[str, str]:
        """Return the models with a default channel that the key may call: task by id."""
        listed = self._send("GET", "/v1/models", key).json()["data"]
        return {str(model["id"]): str(model["task"]) for model in listed if DEFAULT_CHANNEL in model["channels"]}

    def stream(self, chat: ChatCall, key: str) -> Iterator[str]:
        """Yield the answer's text in pieces. Fail with the gateway's message if there is no answer (NotYet for 429 and
        503), or if it breaks off."""
        body = {
            "model": chat.model,
            "messages": chat.messages,
            "max_tokens": chat.max_tokens,
            "temperature": chat.temperature,
            "stream": True,
        }
        url = f"{self.context.gateway_url}/v1/chat/completions"
        headers = {"authorization": f"Bearer {key}"}
        try:
            with self._client.stream("POST", url, json=body, headers=headers) as response:
                if response.status_code != 200:
                    response.read()
                    raise (NotYet if response.status_code in _NOT_NOW else CommandRefused)(_words(response))
                yield from _texts(response.iter_lines())
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise CommandRefused(
                f"the connection to the gateway at {self.context.gateway_url} broke: {why}; see `shoal status`"
            ) from error

    def _send(self, method: str, path: str, key: str) -> httpx.Response:
        url = f"{self.context.gateway_url}{path}"
        try:
            response = self._client.request(method, url, headers={"authorization": f"Bearer {key}"})
        except httpx.HTTPError as error:
            raise CommandRefused(
                f"no answer from the gateway at {self.context.gateway_url}: {error}; see `shoal status`"
            ) from error
        if response.status_code != 200:
            raise CommandRefused(_words(response))
        return response


def demo_key(context: CliContext, tenant: str | None, model: str | None = None) -> tuple[str, DemoKey]:
    """Return a tenant and its demo key: the requested tenant, else the model's, else the first. Fail if there is no
    key."""
    keys = read_demo_keys(context.layout)
    if not keys:
        raise CommandRefused(f"{context.layout.demo_keys_file} has no keys yet: `shoal up` creates them")
    if tenant is not None and tenant not in keys:
        raise CommandRefused(f"tenant {tenant!r} has no demo key; tenants with one: {', '.join(sorted(keys))}")
    owner = (model or "").partition("/")[0]
    chosen = tenant or (owner if owner in keys else min(keys))
    return chosen, keys[chosen]


def _texts(lines: Iterator[str]) -> Iterator[str]:
    """Yield the content of each event. Fail if the stream ends without [DONE]."""
    for line in lines:
        if not line.startswith("data:") or len(line) > MAX_EVENT_CHARS:
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise CommandRefused(f"the answer broke off: {event['error'].get('message', event['error'])}")
        for choice in event.get("choices", []):
            text = choice.get("delta", {}).get("content")
            if text:
                yield text
    raise CommandRefused("the answer broke off: the stream ended without [DONE]")


def _words(response: httpx.Response) -> str:
    try:
        error = response.json()["error"]
        return f"{error['message']} (HTTP {response.status_code}, {error.get('code')})"
    except (ValueError, KeyError, TypeError):
        return f"HTTP {response.status_code}: {response.text[:300]}"


PROMPT_MAX_CHARS = 1_000_000
MAX_TURNS = 200  # turns of a conversation, which is sent whole each time


def chat(
    model: str, *, once: str | None, system: str | None, max_tokens: int, temperature: float, tenant: str | None
) -> None:
    context = current_context()
    _, key = demo_key(context, tenant, model)
    opening = [{"role": "system", "content": system}] if system else []
    with GatewayClient(context) as asker:
        if once is None and sys.stdin.isatty():
            _converse(asker, ChatCall(model, opening, max_tokens, temperature), key.key)
            return
        prompt = once if once is not None else _piped()
        messages = [*opening, {"role": "user", "content": prompt}]
        _print_answer(asker, ChatCall(model, messages, max_tokens, temperature), key.key)


def _converse(asker: GatewayClient, chat: ChatCall, key: str) -> None:
    sys.stderr.write(f"{chat.model}; an empty line or Ctrl-D ends it\n")
    for _ in range(MAX_TURNS):
        try:
            prompt = input("> ").strip()
        except EOFError:
            return
        if not prompt:
            return
        chat.messages.append({"role": "user", "content": prompt})
        try:
            answer = _print_answer(asker, chat, key)
        except CommandRefused as error:
            chat.messages.pop()  # drop the failed turn, so that the next one may succeed
            sys.stderr.write(f"\nshoal: {error}\n")
            continue
        chat.messages.append({"role": "assistant", "content": answer})


def _print_answer(asker: GatewayClient, chat: ChatCall, key: str) -> str:
    pieces = []
    for text in asker.stream(chat, key):
        pieces.append(text)
        sys.stdout.write(text)
        sys.stdout.flush()
    sys.stdout.write("\n")
    return "".join(pieces)


def _piped() -> str:
    prompt = sys.stdin.read(PROMPT_MAX_CHARS + 1).strip()
    if not prompt:
        raise CommandRefused("there is no prompt: standard input is empty; use --once, or pipe a prompt in")
    if len(prompt) > PROMPT_MAX_CHARS:
        raise CommandRefused(f"the prompt has more than {PROMPT_MAX_CHARS} characters")
    return prompt
