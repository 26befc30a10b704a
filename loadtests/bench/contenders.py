"""The contenders of the bench: shoal's gateway in five configurations, its peers, and no gateway at all.

Each is started as its own documentation says, in front of the same engines, with only routing enabled. The peers check
neither keys nor quotas here (litellm checks its one key), which is an advantage for them.
"""

import json
import secrets
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.console import Console

from loadtests.bench.gateway import Backdrop, Bench, gateway, wait_ready
from loadtests.bench.load import Target, closed_loop
from loadtests.bench.parts import Rig, body
from loadtests.bench.peers import bin_of
from loadtests.bench.processes import free_ports, kill, spawn

_NO_HEADERS = b""
_SERVES_S = 60.0
_ALIVE = (200, 401, 404)  # the process answers; `_until_it_serves` checks that it has found its engines


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything that a contender needs to start."""

    folder: Path
    behind: Backdrop
    streams: int
    console: Console


Starter = Callable[[Setting], AbstractContextManager[Rig]]


@dataclass(frozen=True, slots=True)
class Contender:
    start: Starter
    rounds: int = 99  # maximum; a contender that starts in half a minute and is 100 times slower needs no range


def _shoal(way: str) -> Starter:
    @contextmanager
    def start(setting: Setting) -> Iterator[Rig]:
        with gateway(setting.folder, setting.behind) as bench:
            tls = ssl.create_default_context(cafile=str(bench.ca_file)) if way == "tls" else None
            warm_path = b"/healthz" if way == "plain" else b""
            target = Target(bench.tls_port if tls else bench.plain_port, _bearer(bench), tls, warm_path)
            yield _rig(setting, target, (bench.gateway_pid,))

    return start


@contextmanager
def _two_processes(setting: Setting) -> Iterator[Rig]:
    """Start two gateway processes behind one port on one core, to show what the second process costs."""
    shared = {"SHOAL_GATEWAY_REUSE_PORT": "true"}
    with gateway(setting.folder, setting.behind, environment=shared) as first:
        (setting.folder / "second").mkdir()
        with gateway(setting.folder / "second", setting.behind, environment=shared, like=first) as second:
            target = Target(first.plain_port, _bearer(first))
            yield _rig(setting, target, (first.gateway_pid, second.gateway_pid))


@contextmanager
def _rows_to_files(setting: Setting) -> Iterator[Rig]:
    """Start a gateway that writes trace rows to files: the cost includes the lane's part and the writing thread's."""
    with gateway(setting.folder, setting.behind, environment={"SHOAL_GATEWAY_TRACE_DIR": str(setting.folder)}) as bench:
        yield _rig(setting, Target(bench.plain_port, _bearer(bench)), (bench.gateway_pid,))


@contextmanager
def _direct(setting: Setting) -> Iterator[Rig]:
    yield _rig(setting, Target(setting.behind.engine_ports[0], _NO_HEADERS), ())


def _router(name: str, module: str, policy: str, log_level: str) -> Starter:
    """Return a starter of sglang-router or vllm-router: one is a fork of the other, with the same arguments."""

    @contextmanager
    def start(setting: Setting) -> Iterator[Rig]:
        python = bin_of(name, setting.console) / "python"
        port, metrics_port = free_ports(2)
        workers = [f"http://127.0.0.1:{engine_port}" for engine_port in setting.behind.engine_ports]
        command = [
            *(str(python), "-m", module, "--host", "127.0.0.1", "--port", str(port)),
            *("--policy", policy, "--prometheus-port", str(metrics_port), "--log-level", log_level),
            *("--max-concurrent-requests", "100000", "--worker-urls", *workers),
        ]
        with _running(setting, command, Target(port, _NO_HEADERS), "/health") as rig:
            yield rig

    return start


@contextmanager
def _litellm(setting: Setting) -> Iterator[Rig]:
    programs = bin_of("litellm", setting.console)
    (port,) = free_ports(1)
    key = f"sk-{secrets.token_hex(8)}"
    models = [
        {
            "model_name": "acme/bench",
            "litellm_params": {
                "model": "openai/bench",
                "api_base": f"http://127.0.0.1:{engine_port}/v1",
                "api_key": "none",
            },
        }
        for engine_port in setting.behind.engine_ports
    ]
    settings = {"routing_strategy": "simple-shuffle"}
    config = {"model_list": models, "router_settings": settings, "general_settings": {"master_key": key}}
    (setting.folder / "litellm.yaml").write_text(json.dumps(config))  # JSON is YAML
    command = [
        *(str(programs / "litellm"), "--config", str(setting.folder / "litellm.yaml")),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]
    target = Target(port, b"authorization: Bearer %b\r\n" % key.encode())
    with _running(setting, command, target, "/health/liveliness") as rig:
        yield rig


CONTENDERS = {
    "direct": Contender(_direct),
    "shoal": Contender(_shoal("lane")),
    "shoal, TLS": Contender(_shoal("tls")),
    "shoal, plain ASGI": Contender(_shoal("plain")),
    "shoal, 2 processes": Contender(_two_processes),
    "shoal, rows to files": Contender(_rows_to_files),
    "sglang-router rr": Contender(_router("sglang-router", "sglang_router.launch_router", "round_robin", "warn")),
    "sglang-router cache_aware": Contender(
        _router("sglang-router", "sglang_router.launch_router", "cache_aware", "warn")
    ),
    "vllm-router rr": Contender(_router("vllm-router", "vllm_router.launch_router", "round_robin", "warning")),
    "litellm": Contender(_litellm, rounds=1),
}


def _bearer(bench: Bench) -> bytes:
    return b"authorization: Bearer %b\r\n" % bench.api_key.encode()


def _rig(setting: Setting, target: Target, pids: tuple[int, ...]) -> Rig:
    return Rig(target, pids, setting.behind.engine_ports[0], setting.streams)


@contextmanager
def _running(setting: Setting, command: list[str], target: Target, alive_path: str) -> Iterator[Rig]:
    alive_url = f"http://127.0.0.1:{target.port}{alive_path}"
    log_file = setting.folder / "peer.log"
    with log_file.open("wb") as log:
        offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "127.0.0.1", "HF_HUB_OFFLINE": "1"}
        child = spawn(command, log, 0, offline, without=("PYTHONPATH", "VIRTUAL_ENV"))
        rig = _rig(setting, target, (child.pid,))
        try:
            wait_ready(child, alive_url, log_file, _ALIVE)
            _until_it_serves(rig, log_file)
            yield rig
        finally:
            kill(child)


def _until_it_serves(rig: Rig, log_file: Path) -> None:
    """Wait until half a second of requests has no failure: routers answer before they have found all their engines."""
    give_up_s = time.monotonic() + _SERVES_S
    while time.monotonic() < give_up_s:
        tally = uvloop.run(closed_loop(rig.target, [body(1024)], connections=4, seconds=0.5))
        if tally.requests and not tally.failures:
            return
    raise RuntimeError(f"requests still fail after {_SERVES_S} s; the end of its log:\n{log_file.read_text()[-2000:]}")
