"""A replica: the real simulated engine behind uvicorn's protocol, and an agent that sends a heartbeat each second.

    down -> starting -> ready -> (draining) -> down        a crash leads to `down` from anywhere

The engine is the product's, assembled as in its own `server`, on virtual time and without sockets. The agent is
simulated: it sends the heartbeats of the real one, and learns about its engine with the real delays.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Literal

from uvicorn.server import ServerState

from functions.api.ids import EngineName
from functions.decisions.routing.choice import ReplicaView
from functions.engines.sim.app import build_app
from functions.engines.sim.connection import BOUNDS, CONNECTIONS, OpenProtocol
from functions.engines.sim.faults import Faults
from functions.engines.sim.lifecycle import Phase
from functions.engines.sim.parts import EngineParts
from functions.engines.sim.plain_routes import load_adapter
from functions.engines.sim.refusals import EngineRefusal
from functions.engines.sim.server import assemble
from functions.engines.sim.settings import Settings, read_settings
from functions.fleet.bus import BusUnavailable
from functions.fleet.heartbeat import Heartbeat
from functions.gateway.routing.load_client import LoadAnswer
from functions.http.connections import Connections
from functions.http.guard import Guard
from functions.http.listening import server_config
from tests.drills.virtual.bus import BusClient, BusServer
from tests.drills.virtual.loop import Node, VirtualLoop
from tests.drills.virtual.pipes import Network
from tests.drills.virtual.platform import ADAPTERS
from tests.gateway.rig import NOW_UNIX_S

PORT = 8000
_HUNG_AFTER_S = 4.0  # as in `functions.decisions.health.engine`
_BEAT_S = 1.0
State = Literal["down", "starting", "ready", "draining"]


class VirtualClock:
    """The engine's `Clock` on the loop's time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now_s(self) -> float:
        return self._loop.time()

    def wall_s(self) -> float:
        return NOW_UNIX_S + self._loop.time()

    async def sleep_until(self, when_s: float) -> None:
        await asyncio.sleep(max(0.0, when_s - self._loop.time()))


def make_adapters(folder: Path) -> dict[str, Path]:
    """Create a folder for each adapter with distinct weights, so that each has a distinct mark."""
    made: dict[str, Path] = {}
    for number, name in enumerate(ADAPTERS):
        made[name] = folder / f"adapter-{number}"
        made[name].mkdir(parents=True)
        config = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}
        (made[name] / "adapter_config.json").write_text(json.dumps(config))
        (made[name] / "adapter_model.safetensors").write_bytes(f"weights {number}".encode())
    return made


def engine_settings(pool: str, seqs: int, step_ms: float, kv_blocks: int) -> Settings:
    flags = f"--model sim --served-model-name {pool} --enable-lora --max-loras 3 --max-num-seqs {seqs}"
    flags += f" --num-gpu-blocks-override {kv_blocks}"
    costs = f"--sim-step-ms {step_ms} --sim-jitter-ratio 0.1 --enable-prompt-tokens-details --max-model-len 2048"
    return read_settings(f"{flags} {costs}".split(), {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"})


class Replica:
    def __init__(
        self, name: str, settings: Settings, bus: BusServer, adapters: dict[str, Path], folder: Path, rng: Random
    ) -> None:
        self.name = name
        self.pool = settings.served_model_names[0]
        self.network: Network = bus.network
        self.state: State = "down"
        self.frozen_since_s: float | None = None
        self.lives = 0
        self.parts: EngineParts | None = None
        self.node = Node(name)
        self.usage_logs: list[Path] = []
        self.fingerprints: set[str] = set()
        self._settings, self._adapters, self._folder, self._rng = settings, adapters, folder, rng
        self._agent = Node(f"agent-{name}")
        self._bus = BusClient(bus, self._agent)
        self._incarnation, self._sequence = 1, 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._server = ServerState()

    # life cycle

    def start_serving(self, adapters: Sequence[str]) -> None:
        """Start heartbeats, and an engine that is ready at once."""
        loop = self.network.loop
        loop.create_task(self._beat(), name=f"agent-{self.name}", context=self.network.context_of(self._agent))
        self._assemble(adapters)
        self.state = "ready"

    def crash(self) -> None:
        if self.state == "down":
            return
        self.state = "down"
        self.frozen_since_s = None
        self.network.kill(self.node)
        assert self.parts is not None
        self.parts.engine.stop()
        for task in [*self._tasks, *self._server.tasks]:
            task.cancel()
        self._tasks = []

    async def start(self, after_s: float, *, new_agent: bool) -> None:
        """Start another, empty engine process; its adapters must be loaded again."""
        await asyncio.sleep(after_s)
        if self.state != "down":
            return
        if new_agent:
            self._incarnation, self._sequence = self._incarnation + 1, 0
        self.state = "starting"
        await asyncio.sleep(self._rng.uniform(0.5, 3.0))
        if self.state == "starting":
            self._assemble([ADAPTERS[0], ADAPTERS[2]])
            self.state = "ready"

    async def drain(self, at_most_s: float) -> None:
        """Accept nothing new, and stop once no request is running."""
        if self.state != "ready" or self.parts is None:
            return
        self.state, parts = "draining", self.parts
        end_s = self.network.loop.time() + at_most_s
        await asyncio.sleep(2.0)  # until all gateways have heard
        while parts.engine.core.has_work and self.network.loop.time() < end_s:
            await asyncio.sleep(0.1)
        if self.parts is parts:
            self.crash()

    def set_faults(self, **changes: Any) -> None:
        if self.parts is not None:
            self.parts.faults.merge(changes)
            is_frozen = self.parts.faults.now.freeze or self.parts.faults.now.hang
            self.frozen_since_s = self.network.loop.time() if is_frozen else None

    def heal(self) -> None:
        self.set_faults(**Faults().model_dump())

    async def load(self, view: ReplicaView, name: EngineName) -> LoadAnswer:
        """Answer a request to the agent to load an adapter."""
        if self.state != "ready" or self.parts is None:
            return LoadAnswer("not_ready", "the engine is not ready")
        if self.parts.adapters.get(name) is None:
            await asyncio.sleep(self._rng.uniform(0.05, 1.0))
            try:
                await load_adapter(self.parts, name, str(self._adapters[name]))
            except EngineRefusal as refusal:
                if "already been loaded" not in str(refusal):
                    return LoadAnswer("refused", str(refusal))
        return LoadAnswer("loaded") if self.state == "ready" else LoadAnswer("unreachable")

    @property
    def is_idle(self) -> bool:
        return self.parts is None or not self.parts.engine.core.has_work

    # internals

    def _assemble(self, adapters: Sequence[str]) -> None:
        self.lives += 1
        self.node = Node(self.name)
        self.network.context_of(self.node).run(self._put_together, adapters)

    def _put_together(self, adapters: Sequence[str]) -> None:
        loop = self.network.loop
        log = self._folder / f"{self.name}-{self.lives}.log"
        self.usage_logs.append(log)
        limits = self._settings.limits
        blocks = limits.num_kv_blocks + 101 * int(self.name[1:]) + self.lives  # each life has its own fingerprint
        chosen = replace(
            self._settings,
            usage_log=log,
            seed=self._rng.randrange(1 << 30),
            limits=replace(limits, num_kv_blocks=blocks),
        )
        parts = self.parts = assemble(chosen, VirtualClock(loop))
        self.fingerprints.add(parts.fingerprint)
        for name in adapters:
            parts.adapters.register(parts.adapters.read(name, str(self._adapters[name]), in_place=False))
            loaded = parts.adapters.get(name)
            assert loaded is not None
            self._tasks.append(loop.create_task(parts.engine.load_adapter(loaded)))
        guard = Guard(BOUNDS, Connections(CONNECTIONS), clock=loop.time, sweeps_itself=False)
        config = server_config(build_app(parts), guard)
        config.timeout_keep_alive = 5
        config.load()
        state = self._server = ServerState()
        self.network.listen(self.node, (self.name, PORT), lambda: OpenProtocol(guard, config, state, {}, _loop=loop))
        parts.lifecycle.move(Phase.SERVING)
        self._tasks.append(loop.create_task(parts.engine.run()))

    async def _beat(self) -> None:
        while True:
            try:
                async with asyncio.timeout(3.0):
                    await self._bus.publish(self._next())
            except (BusUnavailable, TimeoutError):
                await asyncio.sleep(0)
            await asyncio.sleep(_BEAT_S * self._rng.uniform(0.95, 1.05))

    def _next(self) -> Heartbeat:
        self._sequence += 1
        parts, phase = self.parts, self._phase()
        is_up = parts is not None and phase in ("ready", "draining", "hung")
        scheduler = parts.engine.core.scheduler if parts is not None and is_up else None
        return Heartbeat(
            replica_id=self.name,
            pool=self.pool,
            host=self.name,
            port=PORT,
            phase=phase,  # type: ignore[arg-type]
            sequence=self._sequence,
            incarnation=self._incarnation,
            sent_unix_s=NOW_UNIX_S + self.network.loop.time(),
            running=len(scheduler.running) if scheduler is not None else 0,
            waiting=len(scheduler.waiting) if scheduler is not None else 0,
            kv_usage_ratio=scheduler.blocks.usage_ratio if scheduler is not None else 0.0,
            kv_blocks_total=self._settings.limits.num_kv_blocks,
            service_ms=self._settings.costs.overhead_s * 1000,
            prefill_ms_per_token=0.05,
            adapters=tuple(adapter.name for adapter in parts.adapters) if parts is not None and is_up else (),
            adapter_room=2,
            peer_port=9000,
        )

    def _phase(self) -> str:
        if self.state == "down":
            return "dead"
        frozen_s = self.frozen_since_s
        if frozen_s is not None and self.network.loop.time() - frozen_s > _HUNG_AFTER_S:
            return "hung"
        return self.state
