"""The replay in virtual time: real decisions and engine steps without processes; the same seed gives the same figures.

Engines are `functions.engines.sim.core` on a virtual clock, with their agents' real plans (`virtual_engine`). The fleet
view is folded from heartbeats once a second, with the rates that an agent would measure. Adapters are loaded as a
gateway requests them (`virtual_cold`). One block of the trace is BLOCK engine tokens; SCALE is that of the replay with
processes (`live`), so that both have the same capacity.
"""

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from xxhash import xxh3_64_intdigest

from functions.api.ids import EngineName, ReplicaId, TenantId
from functions.api.snapshot import RoutingEntry
from functions.decisions.adapters.cold import choose_cold
from functions.decisions.adapters.plan import AdapterPolicy
from functions.decisions.prefix.record import PrefixRecord
from functions.decisions.routing.choice import NoReplica, PoolView, Prediction, ReplicaView, RouteRequest, route
from functions.decisions.routing.homes import assumed_home
from functions.decisions.routing.own_load import OwnLoad
from functions.decisions.routing.sessions import session_hash
from functions.engines.sim.core import EngineCore
from functions.engines.sim.limits import EngineLimits, StepCosts
from functions.engines.sim.sequence import Sequence as Running
from functions.engines.sim.sequence import Status
from functions.fleet.view import FleetView
from functions.gateway.routing.homes import SessionHomes
from loadtests.routing.live import SCALE, Sample
from loadtests.routing.trace import ADAPTERS, BLOCK_TOKENS, TraceRequest
from loadtests.routing.virtual_cold import VirtualCold
from loadtests.routing.virtual_engine import POOL, Engine, Node, adapter_name, demand
from studies.routers.live import LiveRouterName, live_choice

BASE, TENANT = EngineName("base"), TenantId("acme")
BLOCK = BLOCK_TOKENS // SCALE
_HEARTBEAT_S = 1.0
_NODES = 2


@dataclass(frozen=True, slots=True)
class Shape:
    replicas: int = 8
    kv_tokens: int = 400_000  # per replica, in the trace's tokens
    max_num_seqs: int = 64
    batched_tokens: int = 4096
    prefill_us_per_token: float = 50.0
    step_ms: float = 8.0
    decode_us_per_seq: float = 100.0
    places: int = 16  # loaded adapters per replica
    slots: int = 8  # adapters in one step
    adapter_load_ms: float = 200.0


class Replay:
    def __init__(self, router: LiveRouterName, shape: Shape, policy: RoutingEntry | None = None) -> None:
        self.now_s = 0.0
        self.samples: list[Sample] = []
        self._other = live_choice(router)
        self._policy = policy or RoutingEntry("default", ("*",))
        self._load = OwnLoad()
        self._record = PrefixRecord(200_000, 3600.0)
        self._fleet = FleetView()
        self._homes = SessionHomes(lambda: self.now_s)
        self._engines = {engine.id: engine for engine in self._new_engines(shape)}
        self.cold = VirtualCold(self._engines, self._fleet, self._load, self._policy, self, self._choose_cold)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._asked: dict[int, tuple[TraceRequest, float, float]] = {}  # request, virtual arrival, time in the replay
        self._number = 0
        for engine in self._engines.values():
            self._record.set_capacity(engine.id, 2 * shape.kv_tokens)

    def run(self, asked: Sequence[TraceRequest], compression: float) -> list[Sample]:
        """Run until each request has its first token. With adapters, agents load in advance for a minute first."""
        began_s = 60.0 if any(each.adapter is not None for each in asked) else 0.0
        for each in asked:
            at_s = began_s + each.at_s / compression
            self.at(at_s, lambda each=each, at_s=at_s: self._route_or_wait(each, at_s, at_s - began_s))  # type: ignore[misc]
        self._send_heartbeat()
        while self._events and len(self.samples) < len(asked):
            self.now_s, _, call = heapq.heappop(self._events)
            call()
        return self.samples

    def at(self, when_s: float, call: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when_s, self._number, call))

    def busy_ratios(self) -> dict[str, float]:
        """Return each engine's share of the time in which it computed."""
        return {engine.id: round(engine.busy_s / self.now_s, 3) for engine in self._engines.values()}

    def _route_or_wait(self, asked: TraceRequest, since_s: float, at_s: float) -> None:
        decision = self._decide(asked)
        if isinstance(decision, NoReplica):
            request = RouteRequest(_name(asked), True, 0, "")
            self.cold.wait(request, lambda: self._route_or_wait(asked, since_s, at_s))
            return
        engine = self._engines[decision.replica.id]
        prompt = [block * BLOCK + at + 1 for block in asked.blocks for at in range(BLOCK)]
        reply = range(1, 2 + max(1, asked.output_tokens // SCALE))
        self._number += 1
        adapter = engine.adapter_ids[_name(asked)] if asked.adapter is not None else None
        running = Running.arrive(self._number, prompt, reply, now_s=self.now_s, adapter=adapter)
        tokens = len(asked.blocks) * BLOCK_TOKENS - decision.cached_tokens
        engine.places[running.seq_id] = self._load.add_request(decision.replica.id, max(0, tokens), self.now_s)
        self._asked[running.seq_id] = (asked, since_s, at_s)
        engine.core.add(running)
        if not engine.busy:
            self._step(engine)

    def _decide(self, asked: TraceRequest) -> Prediction | NoReplica:
        tokens = len(asked.blocks) * BLOCK_TOKENS
        hashes = tuple(_chained(asked.blocks))
        self._number += 1
        name, is_adapter, index = _name(asked), asked.adapter is not None, self._fleet.index(POOL)
        request = RouteRequest(name, is_adapter, tokens, asked.session or str(self._number))
        if self._other is not None:
            return self._other.choose(request, index, hashes, self._load, ())
        cached = {each: blocks * BLOCK_TOKENS for each, blocks in self._record.match(hashes, self.now_s).items()}
        assumed = home = None
        session = session_hash(TENANT, asked.session) if asked.session else None
        if session is not None:
            assumed = assumed_home(session.hex(), index, name, is_adapter=is_adapter)
            home = self._homes.home_of(POOL, session)
        request = RouteRequest(
            name,
            is_adapter,
            tokens,
            session.hex() if session is not None else request.tie_key,
            cached,
            home.replica_id if home is not None else assumed,
            is_first_turn=home is None,
        )
        decision = route(request, index, self._policy, self._load)
        if isinstance(decision, NoReplica):
            return decision
        self._record.record_sent(hashes, decision.replica.id, tokens, BLOCK_TOKENS, self.now_s)
        if session is not None:
            self._homes.record_sent(POOL, session, decision.replica.id, assumed, self._policy.session_ttl_s)
        if decision.load_elsewhere is not None:
            self.cold.copy(name, decision.load_elsewhere)
        return decision

    def _loaded(self, engine: Engine, name: EngineName) -> None:
        self.cold.loaded(engine, name)

    def _refused(self, engine: Engine, name: EngineName) -> None:
        self.cold.refused(engine, name)

    def _choose_cold(
        self,
        request: RouteRequest,
        pool: PoolView,
        policy: RoutingEntry,
        load: OwnLoad,
        excluded: Collection[ReplicaId],
    ) -> ReplicaView | NoReplica:
        if self._other is None:
            return choose_cold(request, pool, policy, load, excluded)
        return self._other.choose_cold(request, self._fleet.index(POOL), load, excluded)

    def _step(self, engine: Engine) -> None:
        engine.busy = engine.core.has_work
        if engine.busy:
            took_s = engine.core.begin_step(self.now_s).duration_s
            engine.busy_s += took_s
            self.at(self.now_s + took_s, lambda: self._stepped(engine))

    def _stepped(self, engine: Engine) -> None:
        for running in engine.core.end_step(self.now_s):
            if running.emitted_tokens == 1:
                self._load.mark_first_token(engine.places[running.seq_id])
                self.samples.append(self._sample(running))
            if running.status is Status.FINISHED:
                self._load.remove_request(engine.places.pop(running.seq_id))
        self._step(engine)

    def _sample(self, running: Running) -> Sample:
        _, since_s, at_s = self._asked.pop(running.seq_id)
        waited_ms = (running.marks.arrived_s - since_s) * 1000
        return Sample(
            at_s,
            200,
            (self.now_s - since_s) * 1000,
            running.prompt_tokens,
            running.cached_tokens,
            waited_ms if waited_ms > 0.0 else None,
        )

    def _send_heartbeat(self) -> None:
        for engine in self._engines.values():
            self._fleet.fold(engine.heartbeat(), self.now_s)
        self.at(self.now_s + _HEARTBEAT_S, self._send_heartbeat)

    def _new_engines(self, shape: Shape) -> Iterator[Engine]:
        limits = EngineLimits(
            max_model_len_tokens=40_000,
            max_num_seqs=shape.max_num_seqs,
            max_num_batched_tokens=shape.batched_tokens // SCALE,
            block_size_tokens=16,
            num_kv_blocks=shape.kv_tokens // SCALE // 16,
            max_loras=shape.slots,
            max_cpu_loras=shape.places,
        )
        costs = StepCosts(
            overhead_s=shape.step_ms / 1000,
            prefill_s_per_token=shape.prefill_us_per_token * SCALE / 1e6,
            decode_s_per_seq=shape.decode_us_per_seq / 1e6,
            adapter_load_s=shape.adapter_load_ms / 1000,
        )
        nodes = [Node() for _ in range(_NODES)]
        ranked = demand(ADAPTERS)
        for number in range(shape.replicas):
            yield Engine(
                id=ReplicaId(f"r{number}"),
                core=EngineCore(limits, costs, Random(number)),
                node=nodes[number % _NODES],
                demand=ranked,
                policy=AdapterPolicy(max_adapters=shape.places),
                clock=self,
                loaded=self._loaded,
                refused=self._refused,
                scale=SCALE,
            )


def _name(asked: TraceRequest) -> EngineName:
    return BASE if asked.adapter is None else adapter_name(asked.adapter)


def _chained(blocks: Sequence[int]) -> Iterator[int]:
    last = 0
    for block in blocks:
        last = xxh3_64_intdigest(b"%d.%d" % (last, block))
        yield last
