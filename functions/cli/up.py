"""`shoal up`, `shoal prepare` and `shoal down`: prepare, start the controller, wait for the fleet, show first answers.

The fleet runs in the background when `shoal up` returns; `shoal down` stops it. `shoal up` can be killed at any time:
prepared parts are kept, the controller continues, and the next `shoal up` continues from there.
"""

import shlex
import shutil
import sysconfig
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from functions.artifacts.errors import ArtifactError
from functions.cli.chat import ChatCall, GatewayClient, NotYet, demo_key
from functions.cli.context import CliContext, context_of, current_context, read_branch, read_settings
from functions.cli.fleet_wait import controller_status, ensure_controller, wait_for_fleet
from functions.cli.refused import CommandRefused
from functions.cli.terminal import TerminalReporter, make_console
from functions.controller.local import ports
from functions.controller.local.adoption import drain_all, end_now, fleet_processes
from functions.controller.local.control import ControllerGone, OrderRefused, ask_controller
from functions.controller.local.found import Found
from functions.controller.local.instances import read_ledger
from functions.controller.local.layout import StateLayout
from functions.controller.local.monitoring import ensure_monitoring
from functions.controller.local.pools import EngineKind, Target
from functions.controller.local.port_check import PortsTaken, check_ports
from functions.controller.local.prepare.base_model import ensure_base_model, ensure_placeholder_model
from functions.controller.local.prepare.certificates import ensure_certificates
from functions.controller.local.prepare.configuration import ensure_configuration
from functions.controller.local.prepare.engine_environment import EngineEnvironment
from functions.controller.local.prepare.secret_files import ensure_secrets, read_demo_keys
from functions.controller.local.prepare.steps import CannotPrepare, ReportedStep, Reporter, exclusive
from functions.controller.local.regions import TooManyRegions, ensure_region
from functions.fleet.regions import RegionsUnreadable


def prepare(engine: EngineKind) -> None:
    reporter = TerminalReporter(make_console())
    context = fleet_context()
    prepare_basics(context, reporter)
    prepare_engine(context, engine, reporter)


def fleet_context() -> CliContext:
    """Return the context of the fleet. A new region gets its state directory and ports first."""
    settings = read_settings()
    if settings.region is None:
        return current_context()
    layout = StateLayout.at(settings.state_dir, settings.region)
    try:
        with exclusive(layout.regions_lock, lambda _: None):
            return context_of(settings, layout, ensure_region(layout, settings.region, settings.port_base))
    except (TooManyRegions, RegionsUnreadable, CannotPrepare, OSError) as error:
        raise CommandRefused(str(error)) from error


def prepare_basics(context: CliContext, reporter: Reporter) -> None:
    """Prepare state, secrets, certificates and configuration, in about a second.

    Regions are prepared one at a time, because what they share is created once.
    """
    layout = context.layout
    with ExitStack() as held:
        if layout.region is not None:
            held.enter_context(exclusive(layout.regions_lock, lambda _: None))
        notes = _prepare_basics(context, reporter)
    for note in notes:
        reporter.print_line(f"note: {note}")


def _prepare_basics(context: CliContext, reporter: Reporter) -> list[str]:
    layout = context.layout
    try:
        with reporter.step("State, secrets and certificates") as step:
            layout.make_directories()
            ensure_secrets(layout)
            step.note(f"{layout.root}, certificates {ensure_certificates(layout)}")
            ensure_monitoring(layout, context.ports)
        with reporter.step("Configuration") as step:
            notes = ensure_configuration(layout, context.settings.project_dir)
            branch = read_branch(layout)
            notes += branch.notes
            step.note(f"{layout.gitops_dir}, pools: {', '.join(pool.name for pool in branch.pools) or 'none'}")
    except (CannotPrepare, OSError) as error:
        raise CommandRefused(str(error)) from error
    return notes


def prepare_engine(context: CliContext, engine: EngineKind, reporter: Reporter) -> None:
    """Prepare the engine's environment and the base model. A simulated engine needs only a placeholder model."""
    layout, venv = context.layout, context.settings.engine_venv
    if engine == "sim":
        ensure_placeholder_model(layout)
        return
    try:
        EngineEnvironment(venv).ensure(log=layout.log_file("prepare-engine"), reporter=reporter)
        with reporter.step("Base model") as step, exclusive(layout.prepare_lock, step.update) as lock:
            ensure_base_model(layout, context.settings.engine_python, lock=lock, step=step)
    except (CannotPrepare, ArtifactError, OSError) as error:
        raise CommandRefused(str(error)) from error


# Last step of `shoal up`: the base model and the demo tenants' adapters answer one question, streamed over HTTPS.


QUESTION = "What is the capital of France?"
MAX_TOKENS = 32
UPDATE_TRAVELS_S = 20.0  # time until a gateway knows from an agent's heartbeat that an adapter is loaded
RETRY_S = 0.3
MAX_SHOWN = 10  # an installation may have thousands of models


def show_first_answers(context: CliContext, asker: GatewayClient, console: Console) -> None:
    """Ask the models that generate text and that the demo keys may call, at most MAX_SHOWN, and print their answers.
    Fail if one does not answer, even if all probes succeed, or if no model can be called."""
    console.print(f"\n[bold]{QUESTION}[/]  [dim]{context.gateway_url}/v1/chat/completions[/]")
    shown: set[str] = set()
    callable_by_some: set[str] = set()
    for tenant, key in sorted(read_demo_keys(context.layout).items()):
        tasks = asker.models(key.key)
        callable_by_some.update(tasks)
        for model in sorted(tasks, key=lambda model: ("/" in model, model)):
            if tasks[model] == "generate" and model not in shown and len(shown) < MAX_SHOWN:
                shown.add(model)
                _show(asker, console, tenant, model, key.key)
    if not callable_by_some:
        raise CommandRefused("no model can be called: see `shoal status` for what is wrong with the configuration")


def _show(asker: GatewayClient, console: Console, tenant: str, model: str, key: str) -> None:
    console.print(f"  [cyan]{escape(model)}[/] [dim]({escape(tenant)})[/] ", end="")
    deadline_s = time.monotonic() + UPDATE_TRAVELS_S
    while True:
        try:
            first_ms = _stream(asker, console, model, key)
            break
        except NotYet:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(RETRY_S)
    console.print(f"  [dim]{first_ms:.0f} ms to the first token[/]")


def _stream(asker: GatewayClient, console: Console, model: str, key: str) -> float:
    """Print the answer while it streams. Return the milliseconds to its first piece; 0 if there was none."""
    started_s = time.monotonic()
    first_ms = 0.0
    for text in asker.stream(ChatCall(model, [{"role": "user", "content": QUESTION}], max_tokens=MAX_TOKENS), key):
        first_ms = first_ms or (time.monotonic() - started_s) * 1000
        console.print(text.replace("\n", " "), end="", soft_wrap=True, markup=False)
    return first_ms


def up(engine: EngineKind, replicas: int | None, *, detach: bool) -> None:
    console = make_console()
    reporter = TerminalReporter(console)
    context = fleet_context()
    prepare_basics(context, reporter)
    _check_ports(context, replicas, reporter)
    prepare_engine(context, engine, reporter)
    with reporter.step("Controller") as step:
        step.note(ensure_controller(context, Target(engine, replicas)))
    if detach:
        reporter.print_line(
            "The fleet starts in the background: `shoal status` shows its progress, `shoal down` stops it."
        )
        return
    wait_for_fleet(context, Target(engine, replicas), reporter)
    with GatewayClient(context) as asker:
        show_first_answers(context, asker, console)
    _show_how_to_go_on(context, reporter)


def _check_ports(context: CliContext, replicas: int | None, reporter: Reporter) -> None:
    """Check that the ports are free and save them, before the minutes of preparation; do nothing if a controller runs.
    A starting controller checks them again."""
    if controller_status(context) is not None:
        return
    with reporter.step("Ports") as step:
        pools = read_branch(context.layout).pools
        count = sum(replicas if replicas is not None else pool.replicas for pool in pools)
        ours = {found.pid for found in fleet_processes(context.layout, read_ledger(context.layout.ledger_file))}
        try:
            check_ports(context.ports.uses(range(count)), ours=ours)
        except PortsTaken as error:
            raise CommandRefused(str(error)) from error
        ports.save_ports(context.layout, context.settings)
        step.note(
            f"from {context.settings.port_base}, all free" + (f"; {len(ours)} processes to adopt" if ours else "")
        )


def _show_how_to_go_on(context: CliContext, reporter: Reporter) -> None:
    tenant, key = demo_key(context, None)
    shoal = _command(context.layout.region)
    base = f"{context.gateway_url}/v1"
    body = '{"model": "smollm2-135m", "messages": [{"role": "user", "content": "Say hello."}]}'
    for line in (
        "",
        f"Call it (as tenant {tenant}) with any OpenAI client:",
        "",
        f'  eval "$({shoal} env)"',
        "",
        f"  curl --cacert {shlex.quote(str(context.layout.ca_file))} {base}/chat/completions \\",
        f"    -H 'authorization: Bearer {key.key}' -H 'content-type: application/json' \\",
        f"    -d '{body}'",
        "",
        "  from openai import OpenAI  # after the eval above; pip install openai",
        "  client = OpenAI()",
        '  question = [{"role": "user", "content": "What is the capital of France?"}]',
        '  for chunk in client.chat.completions.create(model="smollm2-135m", messages=question, stream=True):',
        '      print(chunk.choices[0].delta.content or "", end="")',
        "",
        "Change it: the fleet runs what the branch main of this repository declares.",
        "",
        f"  git clone {shlex.quote(_short(context.layout.gitops_dir))} fleet && cd fleet",
        "  …edit, commit…, git push    # refused with file and line, or live in a second",
        "",
        f"Look: {shoal} status · {shoal} chat acme/support-bot.  Stop: {shoal} down (or make down).",
    ):
        reporter.print_line(line)


def _command(region: str | None) -> str:
    """Return the shell command for `shoal`: its name if the PATH has it, else its path, relative if possible."""
    path = _short(Path(sysconfig.get_path("scripts")) / "shoal")
    command = "shoal" if shutil.which("shoal") is not None else shlex.quote(path)
    return command if region is None else f"{command} --region {region}"


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


# `shoal down`: the controller drains everything; without one, `shoal down` finds the processes and stops them.
# Afterwards it checks again and fails if a process is left.


DOWN_POLL_S = 0.2
# Added to the drain limits of gateway and agents, which run one after the other: time for SIGKILL and cleanup.
SLACK_S = 60.0


def down() -> None:
    context = current_context()
    reporter = TerminalReporter(make_console())
    if not context.layout.run_dir.is_dir():
        reporter.print_line(f"nothing runs: there is no fleet in {context.layout.root}")
        return
    with reporter.step("Stopping the fleet") as step:
        stopped_by_controller = _ask_controller(context, step)
        left = _stop_rest(context, step)
        if left:
            who = ", ".join(f"{found.name} ({found.pid})" for found in left)
            raise CommandRefused(f"still running after SIGKILL, in uninterruptible sleep: {who}")
        ports.forget_ports(context.layout)
        step.note("nothing is left" if stopped_by_controller else "nothing is left; there was no controller")


def _ask_controller(context: CliContext, step: ReportedStep) -> bool:
    try:
        ask_controller(context.layout.control_socket, {"do": "stop"})
    except (ControllerGone, OrderRefused):
        return False
    deadline_s = time.monotonic() + 2 * context.settings.drain_timeout_s + SLACK_S
    while time.monotonic() < deadline_s:
        status = controller_status(context)
        if status is None:
            return True
        going = [process["name"] for process in status["processes"]]
        step.update(f"{len(going)} left: {', '.join(going)}")
        time.sleep(DOWN_POLL_S)
    return False


def _stop_rest(context: CliContext, step: ReportedStep) -> list[Found]:
    """Stop the processes that no controller stopped, beginning with a hung controller, which would restart others.
    Return those that could not be ended."""
    ledger = read_ledger(context.layout.ledger_file)
    end_now(found for found in fleet_processes(context.layout, ledger) if found.name == "controller")
    return drain_all(context.layout, ledger, context.settings.drain_timeout_s, step.update)
