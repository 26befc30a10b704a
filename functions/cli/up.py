"""`shoal up`: prepare, start the controller, wait for the fleet, show that it answers.

The fleet runs in the background when this returns; `shoal down` stops it. Each part can be killed: what was prepared is
kept, the controller goes on by itself, and the next `shoal up` takes up where this one was.
"""

import shlex
import shutil
import sysconfig
from pathlib import Path

from functions.cli.answers import Asker, demo_key
from functions.cli.branch import read_branch
from functions.cli.controller_process import controller_status, ensure_controller
from functions.cli.first_answers import show_first_answers
from functions.cli.fleet_wait import wait_for_fleet
from functions.cli.place import Place, here
from functions.cli.preparation import prepare_basics, prepare_engine
from functions.cli.refused import Refused
from functions.cli.terminal import TerminalReporter, make_console
from functions.controller.local import kept_ports
from functions.controller.local import ledger as ledgers
from functions.controller.local.orphans import left_over
from functions.controller.local.port_check import PortsTaken, check_ports
from functions.controller.local.prepare.reporting import Reporter
from functions.controller.local.target import EngineKind, Target


def up(engine: EngineKind, replicas: int | None, *, detach: bool) -> None:
    console = make_console()
    reporter = TerminalReporter(console)
    place = here()
    prepare_basics(place, reporter)
    _check_ports(place, replicas, reporter)
    prepare_engine(place, engine, reporter)
    with reporter.step("Controller") as step:
        step.note(ensure_controller(place, Target(engine, replicas)))
    if detach:
        reporter.say("The fleet starts in the background: `shoal status` shows how far it is, `shoal down` stops it.")
        return
    wait_for_fleet(place, Target(engine, replicas), reporter)
    with Asker(place) as asker:
        show_first_answers(place, asker, console)
    _show_how_to_go_on(place, reporter)


def _check_ports(place: Place, replicas: int | None, reporter: Reporter) -> None:
    """Before minutes of preparation, and before anything is started; the controller checks again. Kept for later."""
    if controller_status(place) is not None:
        return
    with reporter.step("Ports") as step:
        pools = read_branch(place.layout).pools
        count = sum(replicas if replicas is not None else pool.replicas for pool in pools)
        ours = {found.pid for found in left_over(place.layout, ledgers.read(place.layout.ledger_file))}
        try:
            check_ports(place.ports.uses(range(count)), ours=ours)
        except PortsTaken as error:
            raise Refused(str(error)) from error
        kept_ports.keep(place.layout, place.settings)
        step.note(f"from {place.settings.port_base}, all free" + (f"; {len(ours)} processes to adopt" if ours else ""))


def _show_how_to_go_on(place: Place, reporter: Reporter) -> None:
    tenant, key = demo_key(place, None)
    shoal = _command()
    base = f"{place.gateway_url}/v1"
    body = '{"model": "smollm2-135m", "messages": [{"role": "user", "content": "Say hello."}]}'
    for line in (
        "",
        f"Call it (as tenant {tenant}) with any OpenAI client:",
        "",
        f'  eval "$({shoal} env)"',
        "",
        f"  curl --cacert {shlex.quote(str(place.layout.ca_file))} {base}/chat/completions \\",
        f"    -H 'authorization: Bearer {key.key}' -H 'content-type: application/json' \\",
        f"    -d '{body}'",
        "",
        "  from openai import OpenAI  # after the eval above; pip install openai",
        "  client = OpenAI()",
        '  question = [{"role": "user", "content": "What is the capital of France?"}]',
        '  for chunk in client.chat.completions.create(model="smollm2-135m", messages=question, stream=True):',
        '      print(chunk.choices[0].delta.content or "", end="")',
        "",
        "Change it: what runs is what the branch main of this repository says.",
        "",
        f"  git clone {shlex.quote(_short(place.layout.gitops_dir))} fleet && cd fleet",
        "  …edit, commit…, git push    # refused with file and line, or live in a second",
        "",
        f"Look: {shoal} status · {shoal} chat acme/support-bot.  Stop: {shoal} down (or make down).",
    ):
        reporter.say(line)


def _command() -> str:
    """What to type for `shoal` here: its name where that is found, else its path, as short as it can be."""
    if shutil.which("shoal") is not None:
        return "shoal"
    return shlex.quote(_short(Path(sysconfig.get_path("scripts")) / "shoal"))


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
