"""Twenty thousand hostile inputs over every listener of a running fleet: no failure, no hang, no restart, no traceback
in a log, and no growth of memory.

Listeners: gateway with and without TLS, its metrics, registry (console and internal routes too), two engines, two
agents and their peer ports, webhook, adapter cache, node fetcher and trace store. The seed determines each input; a
finding shows its input.
"""

import asyncio
import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from functions.fleet.agent_credentials import agent_credential
from functions.fleet.role_credentials import Purpose, derived
from tests.drills.hostile.inputs import Operation, operations, requests
from tests.drills.hostile.sender import Listener, Outcomes, Sender
from tests.e2e.projects import PATIENT, project_with, without_limits, without_scaling
from tests.fleets import Fleet, running_fleet, wait_until
from tests.http.ports import Port, adapter_cache, node_fetcher, trace_store
from tests.ports import free_port

pytestmark = [pytest.mark.servers, pytest.mark.drill, pytest.mark.soak, pytest.mark.timeout(3600)]

INPUTS = int(os.environ.get("SHOAL_HOSTILE_INPUTS", "21000"))
SEED = 14
_WARM_SHARE = 0.15  # share of the inputs after which caches, tables and arenas have their final size
_GROWTH_MB = 96  # growth of one process from there on
_AT_ONCE = 4  # connections to each listener
# Refusals by the product with a reason: caused by this load, or by what this fleet lacks.
_GATEWAY_503 = frozenset({"overloaded", "no_capacity", "model_not_ready", "deadline_exceeded", "too_many_waiters"})
_REGISTRY_503 = frozenset({"too_many_waiters", "too_many_uploads", "no_prometheus", "no_trace_store"})
_BESIDE_503 = frozenset({"reason", "ready", "message"})  # if stores are unavailable
_AGENT_503 = frozenset({"reason", "the engine's metrics are unavailable"})


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("hostile")
    project = without_scaling(without_limits(project_with(folder / "project", PATIENT)))
    plain = {"SHOAL_GATEWAY_PLAIN_PORT": str(free_port())}
    (folder / "token").write_text("a token of their own")
    with (
        running_fleet(folder / "state", "sim", project=project, variables=plain) as running,
        webhook() as process,
        adapter_cache(folder) as cache,
        node_fetcher(folder) as fetcher,
        trace_store(folder) as store,
    ):
        running_ports[running.state_dir] = (int(plain["SHOAL_GATEWAY_PLAIN_PORT"]), *process)
        beside[running.state_dir] = (cache, fetcher, store)
        yield running


beside: dict[Path, tuple[Port, ...]] = {}  # processes beside each fleet
# per fleet: its plain port, the webhook's port and the webhook's process
running_ports: dict[Path, tuple[int, int, int]] = {}
_WEBHOOK = """
import asyncio, sys
from functions.controller.kubernetes.run.webhook import Webhook
async def main():
    server = await Webhook(b"a secret of a git server", "main", lambda: None).listen("127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()
asyncio.run(main())
"""


@contextlib.contextmanager
def webhook() -> Iterator[tuple[int, int]]:
    """Run the controller's webhook alone, since a whole controller needs an API server; yield its port and process."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-c", _WEBHOOK, str(port)])
    try:
        wait_until("the webhook listens", lambda: _listens(port), 60.0)
        yield port, process.pid
        assert process.poll() is None, "the webhook has ended"
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_hostile_inputs_cause_no_failure_and_no_memory_growth(fleet: Fleet) -> None:
    listeners = listeners_of(fleet)
    before = pids(fleet)
    senders = [Sender(listener, SEED + number) for number, listener in enumerate(listeners)]
    share = {listener.name: weight(listener) for listener in listeners}
    warm, rest = int(INPUTS * _WARM_SHARE), INPUTS - int(INPUTS * _WARM_SHARE)
    at_start = memory_mb(before)
    asyncio.run(send(senders, share, warm))
    after_warming = memory_mb(before)
    asyncio.run(send(senders, share, rest))
    at_end = memory_mb(before)
    report(listeners, senders, before, (at_start, after_warming, at_end))
    every = [sender.outcomes for sender in senders]
    assert sum(outcomes.inputs for outcomes in every) >= INPUTS
    assert pids(fleet) == before, "a process was restarted"
    found = [*problems(listeners, every), *traces(fleet.state_dir / "logs")]
    assert not found, "\n".join(found[:60])
    grown = {name: round(at_end[name] - mb) for name, mb in after_warming.items() if at_end[name] - mb > _GROWTH_MB}
    assert not grown, f"grew by so many MB after the first {warm} inputs: {grown}"
    still_answers(fleet)


@pytest.mark.parametrize("role", ["gateway", "registry"])
def test_answers_conform_to_the_openapi_document(fleet: Fleet, role: str, tmp_path: Path) -> None:
    """Send requests made from the document in all phases; routes that wait for news by design are excluded.

    No deadline is sent to the gateway: one of a millisecond is answered with 504. This fleet has no Prometheus, and its
    registry no trace store: it answers 503 and names the setting.
    """
    if importlib.util.find_spec("schemathesis") is None:
        pytest.skip("schemathesis is not installed: make an environment of the dev extra's lock")
    key = fleet.key("acme") if role == "gateway" else internal_token(fleet)
    url = f"https://localhost:{fleet.port_base + PORTS[role]}/openapi.json"
    options = ["--checks", CHECKS, "--max-time", "90", "--max-examples", "20", "--seed", str(SEED), "--no-color"]
    options += ["--warnings", "off", "--request-timeout", "60", "--continue-on-failure", "--tls-verify", fleet.ca_file]
    left_out = ["--exclude-path-regex", "/v1/snapshot|/internal/v1/changes"]
    argv = [sys.executable, "-m", "schemathesis.cli", "run", url, *options, *left_out]
    (tmp_path / "schemathesis.toml").write_text(CONFIGURATION.format(key=key))
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    print(done.stdout[-1500:])
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


CHECKS = ",".join(
    f"{what}_conformance" for what in ("status_code", "content_type", "response_schema", "response_headers")
) + ",not_a_server_error"  # fmt: skip
PORTS = {"gateway": 3, "registry": 4}
CONFIGURATION = """
headers = {{ Authorization = "Bearer {key}" }}
[parameters]
"header.X-Shoal-Deadline-Ms" = "60000"
[[operations]]
include-path-regex = "^/v1/(alerts|traces)"
checks.not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 503]
"""


async def send(senders: list[Sender], share: dict[str, float], count: int) -> None:
    total = sum(share.values())
    jobs = [(sender, -int(-count * weight // total)) for sender, weight in zip(senders, share.values(), strict=True)]
    await asyncio.gather(*(sender.send(number, _AT_ONCE) for sender, number in jobs))


def listeners_of(fleet: Fleet) -> list[Listener]:
    base = fleet.port_base
    token = internal_token(fleet)
    plain, hook, _ = running_ports[fleet.state_dir]
    keys = [fleet.key("acme"), fleet.key("globex")]
    gateway = of_document(fleet, f"https://localhost:{base + 3}/openapi.json", "")
    registry = of_document(fleet, f"https://localhost:{base + 4}/openapi.json", token)
    found = [
        Listener("gateway", base + 3, True, requests(gateway, [*keys, *keys, token, "none"], FIELDS), _GATEWAY_503),
        Listener("registry", base + 4, True, requests(registry, [token, *keys, "none"], FIELDS), _REGISTRY_503),
        Listener("metrics", base + 5, False, requests(METRICS, ["none"], {}), frozenset()),
        Listener("gateway, plain", plain, False, requests(gateway, [*keys, "none"], FIELDS), _GATEWAY_503),
        Listener("webhook", hook, False, requests(WEBHOOK, ["none"], FIELDS), frozenset()),
    ]
    chunks = derived("a token of their own", "chunks")
    for port, routes in zip(beside[fleet.state_dir], (CACHE, FETCHER, TRACES), strict=True):
        found.append(Listener(port.name, port.number, False, requests(routes, [chunks, "none"], FIELDS), _BESIDE_503))
    for replica in fleet.replicas():
        engine = int(replica["port"])
        slot = engine - base - 20
        peer = base + 60 + slot
        opening: tuple[Purpose, ...] = ("load", "standing")
        credentials = [agent_credential(derived(token, purpose), "127.0.0.1", peer) for purpose in opening]
        credentials.append(derived(token, "chunks"))
        agent_routes, peer_routes = (
            requests(AGENT, ["none"], FIELDS),
            requests(PEER, [token, *credentials, "none"], FIELDS),
        )
        found += [
            Listener(f"engine {slot}", engine, False, requests(ENGINE, ["none"], FIELDS), frozenset()),
            Listener(f"agent {slot}", base + 40 + slot, False, agent_routes, _AGENT_503),
            Listener(f"peers of {slot}", peer, False, peer_routes, _AGENT_503),
        ]
    return found


def internal_token(fleet: Fleet) -> str:
    return (fleet.state_dir / "secrets" / "internal-token").read_text().strip()


def of_document(fleet: Fleet, url: str, token: str) -> list[Operation]:
    answer = httpx.get(
        url, headers={"authorization": f"Bearer {token}"} if token else {}, verify=fleet.tls, timeout=60.0
    )
    answer.raise_for_status()
    return operations(answer.json())


def weight(listener: Listener) -> float:
    return {"gateway": 8.0, "gateway, plain": 2.0, "registry": 5.0}.get(listener.name, 1.0)


_OBJECT: dict[str, Any] = {}


def _posts(*paths: str, fields: tuple[str, ...], required: tuple[str, ...]) -> list[Operation]:
    schema = {"properties": dict.fromkeys(fields, _OBJECT), "required": list(required)}
    return [Operation("POST", path, schema) for path in paths]


def _gets(*paths: str) -> list[Operation]:
    return [Operation("GET", path, _OBJECT) for path in paths]


METRICS = _gets("/metrics", "/", "/metrics/x")
# Routes that drain or load permanently are excluded: callers on loopback may use them, and they take effect.
AGENT = _gets("/healthz", "/readyz", "/engine/livez", "/metrics", "/engine/metrics", "/openapi.json")
PEER = [
    *_gets("/chunks/{chunk}", "/swarm/{digest}", "/adapters/load"),
    *_posts("/adapters/load", fields=("engine_name", "wait_s"), required=("engine_name",)),
    *_posts("/standing", fields=("mode",), required=()),
]
_SAMPLING = ("model", "max_tokens", "stream", "n", "stop", "logprobs", "seed", "temperature", "stream_options", "user")
ENGINE = [
    *_gets("/health", "/v1/models", "/metrics", "/version"),
    *_posts(
        "/v1/chat/completions", fields=("messages", "tools", *_SAMPLING), required=("model", "messages", "max_tokens")
    ),
    *_posts("/v1/completions", fields=("prompt", "echo", *_SAMPLING), required=("model", "prompt", "max_tokens")),
    *_posts("/tokenize", fields=("model", "prompt", "messages"), required=("prompt",)),
    *_posts("/detokenize", fields=("model", "tokens"), required=("tokens",)),
]
CACHE = _gets("/objects/chunks/{chunk}", "/objects/manifests/{chunk}", "/objects/{name}/{chunk}", "/readyz", "/metrics")
FETCHER = _gets("/chunks/{chunk}", "/swarm/{digest}", "/readyz")
TRACES = [*_gets("/ping", "/", "/play"), *_posts("/", "/?query=SELECT", fields=("prompt",), required=())]
WEBHOOK = [
    *_gets("/hooks/git", "/hooks/other"),
    *_posts("/hooks/git", fields=("ref", "after", "repository"), required=()),
]
_MESSAGE = {"role": "user", "content": "hi"}
_PARTS = {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "input_text", "text": "a"}]}
FIELDS: dict[str, tuple[Any, ...]] = {
    "model": ("smollm2-135m", "smollm2-135m", "acme/support-bot"),
    "messages": ([_MESSAGE], [_MESSAGE], [{"role": "system", "content": "s"}, _MESSAGE], [_PARTS]),
    "prompt": ("hi", ["a", "b"], [1, 2, 3]),
    "input": ("hi", ["a"], [_MESSAGE], [_PARTS]),
    "queries": ("a",),
    "query": ("a",),
    "documents": (["a", "b"],),
    "max_tokens": (1, 3),
    "max_output_tokens": (2,),
    "max_completion_tokens": (2,),
    "stream": (True, False),
    "stream_options": ({"include_usage": True},),
    "stream_interval": (1, 1000),
    "n": (1, 2),
    "tools": ([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],),
    "tool_choice": ("auto", "none"),
    "response_format": ({"type": "text"}, {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}),
    "stop": (["a"], "a"),
    "tokens": ([1, 2, 3],),
    "metadata": ({"a": "b"},),
    "items": ([{"type": "message", "role": "user", "content": "hi"}],),
    "completion_window": ("24h",),
    "endpoint": ("/v1/chat/completions",),
    "input_file_id": ("file-0123456789abcdef",),
    "tenant": ("acme", "globex"),
    "name": ("bot", "other"),
    "version": ("v1", "v2"),
    "channel": ("stable", "canary"),
    "digest": ("sha256:" + "c" * 64,),
    "base_model": ("smollm2-135m",),
    "adapter_type": ("lora",),
    "artifact_uri": ("s3://shoal-models/acme/x",),
    "promote_to": ("canary",),
    "rollout": ("default", "ro-00000000"),
    "verb": ("pause", "resume"),
    "reason": ("because",),
    "scopes": (["inference"],),
    "max_class": ("batch",),
    "key_id": ("ci",),
    "limit": (1, 1000),
    "chunk": ("a" * 64,),
    "engine_name": ("acme/bot@sha256:" + "a" * 16,),
    "wait_s": (0.0, 0.1),
}


def pids(fleet: Fleet) -> dict[str, int]:
    found = {name: int(entry["pid"]) for name, entry in fleet.processes().items()}
    found |= {port.name: port.pid for port in beside[fleet.state_dir] if port.pid is not None}
    return found | {"webhook": running_ports[fleet.state_dir][2]}


def memory_mb(processes: dict[str, int]) -> dict[str, float]:
    return {name: psutil.Process(pid).memory_info().rss / 1e6 for name, pid in processes.items()}


def problems(listeners: list[Listener], every: list[Outcomes]) -> list[str]:
    return [
        f"{listener.name}: {problem}"
        for listener, outcomes in zip(listeners, every, strict=True)
        for problem in (*outcomes.failures, *outcomes.hangs, *outcomes.unreachable)
    ]


def traces(logs: Path) -> list[str]:
    """Return unexpected exceptions, each with its last line."""
    found = []
    for log in sorted(logs.glob("*.log")):
        lines = log.read_text(errors="replace").splitlines()
        for number, line in enumerate(lines):
            if line.startswith("Traceback"):
                ends = next(
                    (later for later in lines[number + 1 : number + 200] if later and not later[0].isspace()), ""
                )
                found.append(f"{log.name}:{number + 1}: {ends[:300]}")
    return found


def report(
    listeners: list[Listener], senders: list[Sender], processes: dict[str, int], memory: tuple[dict[str, float], ...]
) -> None:
    print(f"\n{sum(sender.outcomes.inputs for sender in senders)} inputs, seed {SEED}")
    for listener, sender in zip(listeners, senders, strict=True):
        outcomes = sender.outcomes
        counts = " ".join(f"{status}:{count}" for status, count in sorted(outcomes.statuses.items()))
        bad = f"failures {len(outcomes.failures)} hangs {len(outcomes.hangs)} unreachable {len(outcomes.unreachable)}"
        print(f"  {listener.name:12} {outcomes.inputs:6}  {bad} refused with a reason {outcomes.overloaded}  {counts}")
    print("  RSS in MB: at the start, after the first part, at the end")
    for name in processes:
        print(f"  {name:24} " + " ".join(f"{part[name]:8.1f}" for part in memory))


def still_answers(fleet: Fleet) -> None:
    body = {"model": "smollm2-135m", "messages": [_MESSAGE], "max_tokens": 2}

    def answers() -> bool:
        with fleet.client() as client:
            return client.post("chat/completions", json=body).status_code == 200

    wait_until("a request is answered", answers, 60.0)
    wait_until("the branch is what runs", fleet.is_applied, 60.0)
