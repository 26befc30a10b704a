"""`kill -9` of the agent at every step of a load: the next agent continues, nothing partial is visible, no 404s.

A simulated gateway follows the heartbeats, sends requests for the advertised adapters, and counts answers.
"""

import array
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from functions.api.ids import Digest, EngineName, ModelId
from functions.artifacts import manifest as manifests
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.locations import chunk_key, manifest_key
from functions.artifacts.publish import publish_directory
from functions.artifacts.s3 import S3Store
from functions.fleet.heartbeat import Heartbeat
from tests.artifacts.adapter_files import MODULE, config, safetensors_bytes
from tests.replica.cold_rig import agent_for, installed, leases, metric, publish_many
from tests.replica.conftest import BusProbe
from tests.replica.processes import AgentProcess, Engine, http, wait_for
from tests.replica.snapshots import name_of
from tests.soak import sampled

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]
MIB = 2**20
BIG_MIB = 96
LARGE = ModelId("acme/zz-large")  # the last by name: never preloaded here
PROMISED_S = 2.0  # how long a withdrawn adapter stays loaded after the heartbeat that withdraws it


def make_large_adapter(directory: Path) -> Path:
    """Make an adapter of twelve chunks, all different."""
    directory.mkdir(parents=True)
    floats = 2**18
    rows = BIG_MIB // 2 * floats // 16
    weights = b"".join(array.array("f", [float(part)] * floats).tobytes() for part in range(BIG_MIB // 2))
    pair = {
        f"{MODULE}.lora_A.weight": ("F32", [16, rows], weights),
        f"{MODULE}.lora_B.weight": ("F32", [rows, 16], weights),
    }
    (directory / "adapter_config.json").write_text(json.dumps(config(r=16)))
    (directory / "adapter_model.safetensors").write_bytes(safetensors_bytes(pair))
    return directory


@dataclass
class Gateway:
    """Simulated gateway that requests each advertised adapter repeatedly, without admission."""

    engine: Engine
    bus: BusProbe
    answers: list[tuple[int, str, float]] = field(default_factory=list)  # status, adapter, and when
    heartbeats: list[Heartbeat] = field(default_factory=list)

    @contextmanager
    def run(self) -> Iterator["Gateway"]:
        over = threading.Event()
        thread = threading.Thread(target=self._send, args=(over,))
        thread.start()
        try:
            yield self
        finally:
            over.set()
            thread.join()

    @property
    def refused(self) -> list[tuple[int, str, float]]:
        """Failed answers, without 404s for adapters withdrawn long before: then the test itself was too slow."""
        return [
            (status, name, unix_s)
            for status, name, unix_s in self.answers
            if status not in (0, 200)
            and not (status == 404 and self._withdrawn_since(unix_s - PROMISED_S, unix_s, name))
        ]

    def asked_for(self, name: str) -> bool:
        return any(asked == name for _, asked, _ in list(self.answers))

    def _withdrawn_since(self, from_unix_s: float, to_unix_s: float, name: str) -> bool:
        """Return True if no heartbeat of that period, nor the last one before, named the adapter."""
        before = [heartbeat for heartbeat in self.heartbeats if heartbeat.sent_unix_s <= from_unix_s][-1:]
        heard = before + [
            heartbeat for heartbeat in self.heartbeats if from_unix_s < heartbeat.sent_unix_s <= to_unix_s
        ]
        return bool(before) and all(name not in heartbeat.adapters for heartbeat in heard)

    def _send(self, over: threading.Event) -> None:
        bus = BusProbe(self.bus.url)  # separate, since threads cannot share a connection
        while not over.is_set():
            for name in self._advertised(bus):
                if name in self._advertised(bus):
                    body = {"model": name, "prompt": "ping", "max_tokens": 1}
                    status, _ = http("POST", f"{self.engine.url}/v1/completions", body, 60.0)
                    self.answers.append((status, name, time.time()))
            over.wait(0.05)
        self.heartbeats = [heartbeat for _, heartbeat in bus.poll()]
        bus.close()

    def _advertised(self, bus: BusProbe) -> Sequence[EngineName]:
        heartbeat = bus.last()
        return heartbeat.adapters if heartbeat is not None and heartbeat.phase == "ready" else ()


@dataclass
class Scene:
    digests: dict[ModelId, Digest]
    agent: AgentProcess
    engine: Engine
    bus: BusProbe
    cold: EngineName
    store: S3Store
    tmp_path: Path

    def kill(self) -> None:
        self.signal_agent(signal.SIGKILL)
        assert self.agent.running is not None
        self.agent.running.wait()

    def signal_agent(self, number: signal.Signals) -> None:
        assert self.agent.running is not None
        self.agent.running.send_signal(number)

    def ask_in_background(self) -> None:
        threading.Thread(target=self.agent.load, args=(self.cold, 60.0), daemon=True).start()

    @property
    def cold_hex(self) -> str:
        return self.digests[LARGE].removeprefix("sha256:")

    def partial(self) -> bool:
        return (self.tmp_path / "cache" / "partial" / self.cold_hex / "progress").exists()

    def is_installed(self) -> bool:
        return self.cold_hex in installed(self.tmp_path)

    def in_engine(self) -> bool:
        return self.cold in self.engine.adapters()

    def advertised(self, names: AbstractSet[str]) -> bool:
        heartbeat = self.bus.last()
        return heartbeat is not None and names <= set(heartbeat.adapters)


@pytest.fixture
def scene(store: S3Store, bus: BusProbe, tmp_path: Path) -> Iterator[Scene]:
    digests = publish_many(store, tmp_path, 4, first=70)
    large = make_large_adapter(tmp_path / "large")
    digests[LARGE] = publish_directory(store, large, f"s3://shoal-models/{LARGE}/v1", replace=True)
    with Engine(tmp_path, arguments=("--sim-adapter-load-ms", "400")).run() as engine:
        agent = agent_for(digests, store, tmp_path, engine, bus.url, MAX_ADAPTERS="4")
        yield Scene(digests, agent, engine, bus, name_of(digests[LARGE], LARGE), store, tmp_path)


def until(condition: Callable[[], object], what: str) -> None:
    """Wait like `wait_for`, but poll without a pause, since a step may take milliseconds."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what


def fetching(scene: Scene) -> None:
    """Kill during the fetch: the last chunk is unavailable until the kill."""
    manifest = manifests.decode(scene.store.read_small(manifest_key(scene.cold_hex), MIB))
    last = chunk_key(manifest.distinct_chunks()[-1].sha256)
    content = scene.store.read_small(last, BIG_MIB * MIB)
    scene.store.put(last, content[:-1])
    scene.ask_in_background()
    until(scene.partial, "the fetch began")
    scene.kill()
    scene.store.put(last, content)
    assert not scene.is_installed()
    assert not scene.in_engine()


def in_place_and_not_asked_for_yet(scene: Scene) -> None:
    scene.ask_in_background()
    until(scene.partial, "the fetch began")
    scene.engine.signal(signal.SIGSTOP)  # the engine answers no request of the agent from now on
    until(scene.is_installed, "the files are in place")
    scene.kill()
    scene.engine.signal(signal.SIGCONT)


def loading(scene: Scene) -> None:
    scene.ask_in_background()
    until(scene.is_installed, "the files are in place")
    time.sleep(0.5)  # time for the checks of a large adapter and part of the engine's own 400 ms
    scene.kill()


def loaded(scene: Scene) -> None:
    assert scene.agent.load(scene.cold, 60.0)[0] == 200
    scene.kill()
    assert scene.in_engine()


def withdraw_one_for(scene: Scene, asked: EngineName) -> set[str]:
    """Request `asked`, wait until an adapter is withdrawn for it, and return the adapters loaded before."""
    before = set(scene.engine.adapters())
    wait_for(lambda: scene.advertised(before), "all that there are are advertised")
    assert scene.agent.load(asked, 60.0)[0] == 200
    wait_for(lambda: not scene.advertised(before), "one of the idle is withdrawn")
    return before


def draining(scene: Scene) -> None:
    """Stop the agent before killing it; if the adapter is already unloaded, make another one drain."""
    asked, give_up_s = scene.cold, time.monotonic() + 60
    while True:
        before = withdraw_one_for(scene, asked)
        scene.signal_agent(signal.SIGSTOP)
        gone = before - set(scene.engine.adapters())
        if not gone:
            break
        assert time.monotonic() < give_up_s, "each was unloaded before the agent could be killed"
        scene.signal_agent(signal.SIGCONT)
        asked = EngineName(gone.pop())
    scene.kill()
    assert before < set(scene.engine.adapters()), "and not unloaded yet"


def unloading(scene: Scene) -> None:
    before = set(scene.engine.adapters())
    assert scene.agent.load(scene.cold, 60.0)[0] == 200
    until(lambda: before - set(scene.engine.adapters()), "one of the idle is unloaded")
    scene.kill()


STEPS = (fetching, in_place_and_not_asked_for_yet, loading, loaded, draining, unloading)


@pytest.mark.parametrize("killed_while", sampled(STEPS, keep=[loading]))
def test_restarted_agent_continues_after_a_kill(killed_while: Callable[[Scene], None], scene: Scene) -> None:
    with Gateway(scene.engine, scene.bus).run() as gateway:
        with scene.agent.run():
            scene.agent.wait_until_ready()
            wait_for(lambda: len(scene.engine.adapters()) == 3, "three are loaded ahead")
            killed_while(scene)
        with scene.agent.run() as second:
            second.wait_until_ready()
            wait_for(lambda: second.load(scene.cold, 60.0)[0] == 200, "the cold one is loaded")
            assert scene.in_engine()
            wait_for(lambda: scene.advertised({scene.cold}), "and advertised")
            wait_for(lambda: len(scene.engine.adapters()) == 3, "the headroom is there again")
            assert metric(second, 'shoal_adapter_load_failures_total{outcome="refused"}') == 0
            needed = {name.rpartition(":")[2] for name in scene.engine.adapters()}
            wait_for(lambda: needed <= set(leases(scene.tmp_path)["r0"]), "the lease names what the engine holds")
            wait_for(lambda: gateway.asked_for(scene.cold), "a gateway has asked for it")
    assert gateway.refused == [], "a request met an adapter that was not there"
    cache = ArtifactCache(scene.tmp_path / "cache")
    for hex_digits in installed(scene.tmp_path):
        cache.verified(Digest(f"sha256:{hex_digits}"))  # raises if anything is partial
    assert not list((scene.tmp_path / "cache" / "partial").glob("*"))
