"""Listeners of Locust's events: options, discovery of models, lag of this process, verdict and exit code.

Exit code 0: every threshold holds, even if a threshold allows failures; 1: one is broken, or no request was answered;
2: an option or a file is wrong, before any load. With workers, only the master judges.
"""

import argparse
import logging
import os
import ssl
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event
from locust import events
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.exception import StopUser
from locust.runners import WorkerRunner

from loadtests import fleet
from loadtests.locust import measured, slo_file, verdicts
from loadtests.locust.slo import BadThreshold, Threshold, judge, parse_option
from loadtests.locust.spike import Spike

_LATE_EVERY_S = 0.1
_READY_S = 120.0


@events.init_command_line_parser.add_listener
def options(parser: LocustArgumentParser) -> None:
    group = parser.add_argument_group("shoal: load profiles")
    add = group.add_argument
    add("--seed", type=int, default=1, help="Seed of users' random draws, together with the number of workers.")
    add("--models", default="", help="Models to call, comma-separated. Default: all that are ready for each key.")
    add(
        "--gateways",
        default="",
        env_var="SHOAL_GATEWAYS",
        help="Base URLs of gateways, comma-separated; each user calls one. Default: OPENAI_BASE_URL.",
    )
    add("--tries", type=_count, default=5, help="Maximum attempts of a request that is refused with retry-after.")
    add("--answer-timeout", type=float, default=120.0, help="Seconds after which an incomplete answer is a failure.")
    add(
        "--slo",
        type=_checked,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="Threshold to add to the file's, or to replace one of the same name.",
    )
    add("--slo-file", default=str(slo_file.SHIPPED), help="File with load and thresholds of each profile, or `none`.")
    add("--verdict", default="", metavar="FILE", help="File for the verdict as JSON.")
    tls()
    try:
        load = slo_file.load_for(sys.argv)
    except BadThreshold as error:
        parser.error(str(error))
    parser.set_defaults(num_users=load.get("users"), spawn_rate=load.get("spawn_rate"), stop_timeout=60.0)
    parser.set_defaults(run_time=load.get("run_time", "60s"))


@events.init.add_listener
def prepare_run(environment: Environment, **_: Any) -> None:
    logging.getLogger("httpx").setLevel(logging.WARNING)
    _thresholds(environment)  # invalid thresholds end the run before any load
    try:
        _state(environment)["tenants"] = fleet.discover(tls())
        environment.host = addresses(environment)[0]
    except (fleet.NotConfigured, fleet.Unanswered) as error:
        _end(str(error))
    _leave_out(environment)
    options = environment.parsed_options
    if not isinstance(environment.runner, WorkerRunner):  # workers receive these options when they start users
        options.base_users, options.load_s = options.num_users or 1, float(options.run_time or 60)
    _ready(environment).set()


@events.test_start.add_listener
def started(environment: Environment, **_: Any) -> None:
    _state(environment)["began_s"] = time.monotonic()
    _state(environment)["lag"] = gevent.spawn(_watch_itself, environment)


@events.test_stop.add_listener
def stopped(environment: Environment, **_: Any) -> None:
    if (lag := _state(environment).pop("lag", None)) is not None:
        lag.kill()


@events.quitting.add_listener
def judged(environment: Environment, **_: Any) -> None:
    if isinstance(environment.runner, WorkerRunner):
        environment.process_exit_code = 0
        return
    entries = measured.by_entry(environment.stats)
    found = judge(_thresholds(environment), entries)
    print(verdicts.table(found, entries), file=sys.stderr)
    if file := environment.parsed_options.verdict:
        Path(file).write_text(verdicts.as_json(found, entries, environment.parsed_options.seed))
    environment.process_exit_code = 0 if all(each.kept for each in found) and verdicts.answered(entries) else 1


def wait_ready(environment: Environment) -> None:
    """Wait until models are discovered: a worker may have to start users before that."""
    if not _ready(environment).wait(_READY_S):
        raise StopUser


def tenants(environment: Environment, task: str) -> list[fleet.Tenant]:
    """Return the tenants that have a model of the task, with these models alone and filtered by --models."""
    only = {name for name in environment.parsed_options.models.split(",") if name}
    found = []
    for tenant in _state(environment)["tenants"]:
        kept = tuple(model for model in tenant.of_task(task) if not only or model.id in only)
        if kept:
            found.append(fleet.Tenant(tenant.api_key, kept))
    return found


def seed(environment: Environment) -> int:
    return int(environment.parsed_options.seed)


def spike(environment: Environment) -> Spike:
    options = environment.parsed_options
    return Spike(options.base_users, options.load_s)


def addresses(environment: Environment) -> list[str]:
    named = [url.strip().rstrip("/") for url in environment.parsed_options.gateways.split(",") if url.strip()]
    return named or [fleet.base_url()]


@cache
def tls() -> ssl.SSLContext:
    """Return the TLS context. It is created before workers fork: on a busy machine a worker would seem dead."""
    return ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE"))


def elapsed_s(environment: Environment) -> float:
    """Return the seconds since the load began in this process."""
    return time.monotonic() - float(_state(environment).get("began_s", time.monotonic()))


def _state(environment: Environment) -> dict[str, Any]:
    """Return this run's state. It is stored in the environment, so that two runs in one process share nothing."""
    found: dict[str, Any] = environment.__dict__.setdefault("shoal", {})
    return found


def _leave_out(environment: Environment) -> None:
    """Remove user classes for whose task no model is ready. End the run if none is left."""
    kept = [user for user in environment.user_classes if tenants(environment, getattr(user, "model_task", "generate"))]
    if not kept:
        _end(
            "no key has a ready model of this profile's task"
            + (" among --models" if environment.parsed_options.models else "")
        )
    environment.user_classes[:] = kept


def _ready(environment: Environment) -> Event:
    found: Event = _state(environment).setdefault("ready", Event())
    return found


def _watch_itself(environment: Environment) -> None:
    while True:
        due_s = time.perf_counter() + _LATE_EVERY_S
        gevent.sleep(_LATE_EVERY_S)
        late_s = max(0.0, time.perf_counter() - due_s)
        measured.beside_total(environment.stats, "lag", "generator", late_s)


def _thresholds(environment: Environment) -> list[Threshold]:
    """Return the file's thresholds; those of the command line replace equal names and add others."""
    parsed = environment.parsed_options
    named: list[Threshold] = []
    if parsed.slo_file != slo_file.NONE:
        try:
            named = slo_file.read(Path(parsed.slo_file), slo_file.profile_of(sys.argv)).thresholds
        except BadThreshold as error:
            _end(str(error))
    return list({each.name: each for each in [*named, *map(parse_option, parsed.slo)]}.values())


def _checked(text: str) -> str:
    """Validate a threshold and return its text, because options are sent to workers as text and numbers."""
    try:
        parse_option(text)
    except BadThreshold as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 to 1000")
    return int(text)


def _end(why: str) -> None:
    print(f"error: {why}", file=sys.stderr)
    sys.exit(2)
