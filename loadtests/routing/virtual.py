"""The replay in virtual time: real decisions, real engine steps, no processes; the same seed gives the same figures.

Engines are `functions.engines.sim.core`, told of time instead of sleeping; what a gateway would know of them is folded
from beats once a second, with the rates that an agent would measure. One block of the trace is `BLOCK` engine tokens.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from xxhash import xxh3_64_intdigest

from functions.api.ids import EngineName, PoolName, ReplicaId
from functions.api.snapshot import RoutingEntry
from functions.decisions.baselines import RouterName, baseline
from functions.decisions.engine_rates import EngineRates, RateCounters, update
from functions.decisions.own_load import OwnLoad, Place
from functions.decisions.prefix_record import PrefixRecord
from functions.decisions.replicas import PoolIndex, ReplicaView
from functions.decisions.routing import NoReplica, Prediction, RouteRequest, predict, route
from functions.engines.sim.core import EngineCore
from functions.engines.sim.limits import EngineLimits, StepCosts
from functions.engines.sim.sequence import Sequence as Running
from functions.engines.sim.sequence import Status
from loadtests.routing.live import Sample
from loadtests.routing.trace import BLOCK_TOKENS, Asked

POOL, BASE = PoolName("base"), EngineName("base")
SCALE = 16
BLOCK = BLOCK_TOKENS // SCALE
_BEAT_S = 1.0


@dataclass(frozen=True, slots=True)
class Shape:
    replicas: int = 8
    kv_tokens: int = 400_000  # of the trace, a replica
    max_num_seqs: int = 64
    batched_tokens: int = 4096
    prefill_us_per_token: float = 50.0
    step_ms: float = 8.0
    decode_us_per_seq: float = 100.0


@dataclass(slots=True)
class Engine:
    view: ReplicaView
    core: EngineCore
    rates: EngineRates = field(default_factory=EngineRates)
    busy: bool = False
    places: dict[int, Place] = field(default_factory=dict)


class Replay:
    def __init__(self, router: RouterName, shape: Shape, policy: RoutingEntry | None = None) -> None:
        self._other = baseline(router)
        self._policy = policy or RoutingEntry("default", ("*",))
        self._shape = shape
        self._load = OwnLoad()
        self._record = PrefixRecord(200_000, 3600.0)
        self._index = PoolIndex()
        self._engines = {engine.view.id: engine for engine in _engines(shape)}
        for engine in self._engines.values():
            self._index.put(None, engine.view)
            self._record.holds_at_most(engine.view.id, 2 * shape.kv_tokens)
        self._events: list[tuple[float, int, str, object]] = []
        self._number = 0
        self.samples: list[Sample] = []

    def run(self, asked: Sequence[Asked], compression: float) -> list[Sample]:
        for each in asked:
            self._at(each.at_s / compression, "ask", each)
        self._at(_BEAT_S, "beat", None)
        waiting = len(asked)
        while self._events and len(self.samples) < waiting:
            now_s, _, what, subject = heapq.heappop(self._events)
            if what == "ask":
                assert isinstance(subject, Asked)
                self._ask(subject, now_s)
            elif what == "step":
                assert isinstance(subject, Engine)
                self._stepped(subject, now_s)
            else:
                self._beat()
                self._at(now_s + _BEAT_S, "beat", None)
        return self.samples

    def _at(self, when_s: float, what: str, subject: object) -> None:
        self._number += 1
        heapq.heappush(self._events, (when_s, self._number, what, subject))

    def _ask(self, asked: Asked, now_s: float) -> None:
        decision = self._decide(asked, now_s)
        engine = self._engines[decision.replica.id]
        prompt = [block * BLOCK + at + 1 for block in asked.blocks for at in range(BLOCK)]
        reply = range(1, 2 + max(1, asked.output_tokens // SCALE))
        self._number += 1
        running = Running.arrive(self._number, prompt, reply, now_s=now_s)
        tokens = len(asked.blocks) * BLOCK_TOKENS - decision.cached_tokens
        engine.places[running.seq_id] = self._load.enter(decision.replica.id, max(0, tokens), now_s)
        engine.core.add(running)
        if not engine.busy:
            self._step(engine, now_s)

    def _decide(self, asked: Asked, now_s: float) -> Prediction:
        tokens = len(asked.blocks) * BLOCK_TOKENS
        hashes = tuple(_chained(asked.blocks))
        self._number += 1
        key = str(self._number)
        if self._other is not None:
            row = self._other.pick(POOL, BASE, hashes, self._index.rows, self._load)
            return predict(RouteRequest(BASE, False, tokens, key), row[6], self._load)
        cached = {each: blocks * BLOCK_TOKENS for each, blocks in self._record.match(hashes, now_s).items()}
        request = RouteRequest(BASE, False, tokens, key, cached)
        decision = route(request, self._index, self._policy, self._load)
        assert not isinstance(decision, NoReplica)
        self._record.enter(hashes, decision.replica.id, tokens, BLOCK_TOKENS, now_s)
        return decision

    def _step(self, engine: Engine, now_s: float) -> None:
        engine.busy = engine.core.has_work
        if engine.busy:
            took_s = engine.core.begin_step(now_s).duration_s
            self._at(now_s + took_s, "step", engine)

    def _stepped(self, engine: Engine, now_s: float) -> None:
        for running in engine.core.end_step(now_s):
            if running.emitted_tokens == 1:
                self._load.start(engine.places[running.seq_id])
                self.samples.append(
                    Sample(
                        running.marks.arrived_s,
                        200,
                        (now_s - running.marks.arrived_s) * 1000,
                        running.prompt_tokens,
                        running.cached_tokens,
                        None,
                    )
                )
            if running.status is Status.FINISHED:
                self._load.leave(engine.places.pop(running.seq_id))
        self._step(engine, now_s)

    def _beat(self) -> None:
        for engine in self._engines.values():
            core, former = engine.core, engine.view
            stats, scheduler = core.stats, core.scheduler
            counters = RateCounters(
                finished=float(sum(stats.e2e_s.counts)),
                e2e_s=stats.e2e_s.total,
                prefill_s=stats.prefill_s.total,
                computed_prompt_tokens=stats.request_computed_tokens.total,
                running=len(scheduler.running),
            )
            engine.rates = update(engine.rates, counters)
            engine.view = ReplicaView(
                id=former.id,
                pool=POOL,
                host="",
                port=0,
                phase="ready",
                running=len(scheduler.running),
                waiting=len(scheduler.waiting),
                kv_usage_ratio=scheduler.blocks.usage_ratio,
                adapters=frozenset(),
                service_ms=engine.rates.service_ms,
                prefill_ms_per_token=engine.rates.prefill_ms_per_token / SCALE,
            )
            self._index.put(former, engine.view)


def _engines(shape: Shape) -> Iterator[Engine]:
    limits = EngineLimits(
        max_model_len_tokens=10_000,
        max_num_seqs=shape.max_num_seqs,
        max_num_batched_tokens=shape.batched_tokens // SCALE,
        block_size_tokens=BLOCK // 2,
        num_kv_blocks=shape.kv_tokens // SCALE // (BLOCK // 2),
    )
    costs = StepCosts(
        overhead_s=shape.step_ms / 1000,
        prefill_s_per_token=shape.prefill_us_per_token * SCALE / 1e6,
        decode_s_per_seq=shape.decode_us_per_seq / 1e6,
    )
    prefill_ms = shape.prefill_us_per_token / 1000
    for number in range(shape.replicas):
        view = ReplicaView(ReplicaId(f"r{number}"), POOL, "", 0, "ready", 0, 0, 0.0, frozenset(), 50.0, prefill_ms)
        yield Engine(view, EngineCore(limits, costs, Random(number)))


def _chained(blocks: Sequence[int]) -> Iterator[int]:
    last = 0
    for block in blocks:
        last = xxh3_64_intdigest(b"%d.%d" % (last, block))
        yield last
