"""Commands for the local fleet: `restart`, `clear-accelerator`, `env`, `logs`, `suspend`, `resume`, `reconcile`."""

import json
import os
import shlex
import sys
import time
from pathlib import Path

from functions.cli.chat import demo_key
from functions.cli.context import current_context
from functions.cli.fleet_wait import controller_status, send_order
from functions.cli.refused import CommandRefused
from functions.cli.status_tables import short
from functions.cli.terminal import TerminalReporter, make_console
from functions.controller.local.files import last_lines
from functions.controller.local.prepare.secret_files import read_demo_keys

POLL_S = 0.25


def restart(name: str) -> None:
    context = current_context()
    send_order(context, {"do": "restart", "name": name})
    with TerminalReporter(make_console()).step(f"Restarting {name}") as step:
        while True:
            status = controller_status(context)
            if status is None:
                raise CommandRefused("the controller exited; `shoal up` starts it again")
            doing = status["controller"]["operation"]
            if not doing.startswith("restarting"):
                break
            step.update(doing)
            time.sleep(POLL_S)
        if doing.startswith("failed"):
            raise CommandRefused(doing)
        step.note(doing)


def clear_accelerator(replica: str) -> None:
    said = send_order(current_context(), {"do": "clear", "name": replica})
    TerminalReporter(make_console()).print_line(str(said))


# `shoal env`: variables for a shell, so that any OpenAI client uses the local fleet.


ALSO_TRUSTED_BY = ("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE")


def env(tenant: str | None, *, as_json: bool) -> None:
    context = current_context()
    chosen, key = demo_key(context, tenant)
    values = {
        "OPENAI_BASE_URL": f"{context.gateway_url}/v1",
        "OPENAI_API_KEY": key.key,
        "SSL_CERT_FILE": str(context.layout.ca_bundle_file),
        # For load tests, which use the keys of several tenants.
        "SHOAL_API_KEYS": ",".join(each.key for each in read_demo_keys(context.layout).values()),
    }
    # If the shell has set one of these, it would override SSL_CERT_FILE.
    values |= {name: values["SSL_CERT_FILE"] for name in ALSO_TRUSTED_BY if os.environ.get(name)}
    if as_json:
        sys.stdout.write(json.dumps({"tenant": chosen, **values}, indent=2) + "\n")
        return
    lines = [
        f'# shoal, as tenant {chosen}.  Use: eval "$(shoal env)"',
        "# SSL_CERT_FILE replaces the trusted authorities of EVERY program in this shell. The file contains this",
        "# machine's own ones and the fleet's, which can only sign for localhost.  Undo: unset SSL_CERT_FILE",
        *(f"export {name}={shlex.quote(value)}" for name, value in values.items()),
    ]
    sys.stdout.write("\n".join(lines) + "\n")


# `shoal logs`: the end of one process's log, and new lines.


LOG_POLL_S = 0.3
READ_BYTES = 64 * 1024


def logs(name: str, *, follow: bool, lines: int) -> None:
    directory = current_context().layout.logs_dir
    known = sorted(path.name.removesuffix(".log") for path in directory.glob("*.log"))
    if name not in known:
        raise CommandRefused(f"there is no log {name!r}; logs: {', '.join(known) or 'none'}")
    path = directory / f"{name}.log"
    end = path.stat().st_size
    for line in last_lines(path, lines):
        sys.stdout.write(line + "\n")
    if follow:
        _follow(path, end)


def _follow(path: Path, position: int) -> None:
    """Print new output until interrupted. A rotated log is read from its beginning."""
    while True:
        if path.exists():
            size = path.stat().st_size
            position = position if position <= size else 0
            with path.open("rb") as file:
                file.seek(position)
                while block := file.read(READ_BYTES):
                    position += len(block)
                    sys.stdout.write(block.decode(errors="replace"))
            sys.stdout.flush()
        time.sleep(LOG_POLL_S)


# `shoal suspend`, `shoal resume`, `shoal reconcile`: control of whether the fleet follows its branch.


RECONCILE_POLL_S = 0.2
TIMEOUT_S = 60.0


def suspend(reason: str) -> None:
    send_order(current_context(clones=True), {"do": "suspend", "reason": reason})
    reporter = TerminalReporter(make_console())
    reporter.print_line(
        "Suspended: the fleet keeps running, and nothing changes until `shoal resume`. Pushes are still checked."
    )


def resume() -> None:
    send_order(current_context(clones=True), {"do": "resume"})
    _follow_reconciliation("Resuming")


def reconcile() -> None:
    send_order(current_context(clones=True), {"do": "reconcile"})
    _follow_reconciliation("Reconciling")


def _follow_reconciliation(title: str) -> None:
    """Wait until the branch's tip is applied. Fail if it has problems, if the controller exits, or after TIMEOUT_S."""
    context = current_context(clones=True)
    deadline_s = time.monotonic() + TIMEOUT_S
    with TerminalReporter(make_console()).step(title) as step:
        while True:
            status = controller_status(context)
            if status is None:
                raise CommandRefused("the controller exited; `shoal up` starts it again")
            revision = status["revision"]
            if revision["problem_count"]:
                first = revision["problems"][0]
                raise CommandRefused(
                    f"{short(revision['tip'])} has {revision['problem_count']} problem(s); the first: {first}"
                )
            if revision["tip"] == revision["desired"] == revision["last_applied"] and status["settled"]:
                step.note(f"{short(revision['desired'])} is applied")
                return
            if time.monotonic() > deadline_s:
                raise CommandRefused(
                    f"not applied after {TIMEOUT_S:.0f} s; the controller continues: see `shoal status`"
                )
            step.update(revision["message"])
            time.sleep(RECONCILE_POLL_S)
