"""A gateway's admission queue and router in front of simulated engines, in virtual time without processes and sockets.

The decisions are the real ones (`decisions.admission.queue`, `decisions.routing.choice`), the engines step as the
simulated servers do (`functions.engines.sim.core`), and the gateway receives a heartbeat of each engine every second.
The same seed gives the same figures on any machine. The live runs show what processes and sockets add.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

from functions.api.ids import EngineName, PoolName, ReplicaId, TenantId
from functions.api.snapshot import AdmissionEntry, RoutingEntry
from functions.decisions.admission.drain_rate import retry_after_s
from functions.decisions.admission.queue import Admission, Refuse
from functions.decisions.admission.ticket import OVER, Ticket, cost_tokens
from functions.decisions.health.engine_rates import EngineRates, RateCounters, update
from functions.decisions.routing.choice import NoReplica, RouteRequest, route
from functions.decisions.routing.own_load import InFlightSlot, OwnLoad
from functions.decisions.routing.replicas import PoolIndex, ReplicaView
from functions.engines.sim.core import EngineCore
from functions.engines.sim.limits import EngineLimits, StepCosts
from functions.engines.sim.sequence import Sequence as Running
from functions.engines.sim.sequence import Status

POOL, BASE = PoolName("base"), EngineName("base")
_HEARTBEAT_S, _SWEEP_S = 1.0, 0.25
_NUMBERS = count()


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of the engines; the defaults resemble a small model on one data-centre accelerator."""

    replicas: int = 8
    kv_tokens: int = 262_144  # per replica
    max_num_seqs: int = 64
    batched_tokens: int = 2048
    prefill_us_per_token: float = 50.0
    step_ms: float = 8.0
    decode_us_per_seq: float = 100.0


@dataclass(slots=True, eq=False)
class VirtualRequest:
    """One request and its outcome."""

    at_s: float
    tenant: str
    prompt_tokens: int
    output_tokens: int
    band: int = 0
    weight: float = 1.0
    tries_left: int = 0  # how often it is sent again after a rejection, when its retry-after has passed
    ticket: Ticket | None = None
    place: InFlightSlot | None = None
    dispatched_s: float = 0.0
    ttft_s: float | None = None
    ended_s: float | None = None
    refused: Refuse | None = None
    content: bytes = field(default_factory=lambda: b"%d" % next(_NUMBERS))
    returned_from: "VirtualRequest | None" = None  # the rejected attempt before, whose retry-after it obeyed


@dataclass(slots=True)
class _Engine:
    view: ReplicaView
    core: EngineCore
    rates: EngineRates = field(default_factory=EngineRates)
    busy: bool = False


class VirtualFleet:
    def __init__(self, shape: Shape, policy: AdmissionEntry | None) -> None:
        """Build the fleet. Without a policy there is no admission queue: every request is dispatched immediately."""
        self.admission = Admission(policy, 0.0) if policy is not None else None
        self._routing = RoutingEntry("default", ("*",))
        self._load = OwnLoad()
        self._index = PoolIndex()
        self._engines = {engine.view.id: engine for engine in _engines(shape)}
        for engine in self._engines.values():
            self._index.put(None, engine.view)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = 0
        self._waiting: dict[int, VirtualRequest] = {}
        self._running: dict[int, VirtualRequest] = {}
        self.all: list[VirtualRequest] = []

    def run(self, asked: Sequence[VirtualRequest], until_s: float) -> list[VirtualRequest]:
        """Send the requests and run until `until_s`. Return all requests, repetitions of rejected ones included."""
        for each in asked:
            self._arrive_later(each)
        self._send_heartbeat(0.0)
        self._sweep(0.0)
        while self._events and self._events[0][0] <= until_s:
            now_s, _, happens = heapq.heappop(self._events)
            happens(now_s)
        return self.all

    def _at(self, when_s: float, happens: Callable[[float], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when_s, self._number, happens))

    def _arrive_later(self, asked: VirtualRequest) -> None:
        self._at(asked.at_s, lambda now_s: self._arrive(asked, now_s))

    def _arrive(self, asked: VirtualRequest, now_s: float) -> None:
        self.all.append(asked)
        if self.admission is None:
            self._dispatch(asked, now_s)
            return
        self._number += 1
        prompt, output = asked.prompt_tokens, asked.output_tokens
        deadline_s = now_s + self.admission.rules[asked.band].max_wait_s
        asked.ticket = Ticket(
            self._number, TenantId(asked.tenant), asked.weight, asked.band, prompt, prompt + output,
            cost_tokens(prompt, output), deadline_s, now_s, content=asked.content,
        )  # fmt: skip
        verdict = self.admission.arrive(asked.ticket, now_s)
        if verdict == "dispatch":
            self._dispatch(asked, now_s)
        elif verdict == "wait":
            self._waiting[self._number] = asked
        else:
            self._refuse(asked, verdict, now_s)

    def _refuse(self, asked: VirtualRequest, refuse: Refuse, now_s: float) -> None:
        asked.refused, asked.ended_s = refuse, now_s
        if asked.tries_left:
            self._number += 1
            back_s = now_s + retry_after_s(refuse.after_s, f"{asked.tenant}-{self._number}")
            self._arrive_later(
                VirtualRequest(
                    back_s, asked.tenant, asked.prompt_tokens, asked.output_tokens, asked.band, asked.weight,
                    asked.tries_left - 1, content=asked.content, returned_from=asked,
                )
            )  # fmt: skip

    def _dispatch(self, asked: VirtualRequest, now_s: float) -> None:
        self._number += 1
        decision = route(
            RouteRequest(BASE, False, asked.prompt_tokens, str(self._number)), self._index, self._routing, self._load
        )
        assert not isinstance(decision, NoReplica)
        engine = self._engines[decision.replica.id]
        asked.dispatched_s = now_s
        asked.place = self._load.add_request(decision.replica.id, asked.prompt_tokens, now_s)
        running = Running.arrive(self._number, range(asked.prompt_tokens), range(asked.output_tokens), now_s=now_s)
        self._running[running.seq_id] = asked
        engine.core.add(running)
        if not engine.busy:
            self._step(engine, now_s)

    def _step(self, engine: _Engine, now_s: float) -> None:
        engine.busy = engine.core.has_work
        if engine.busy:
            self._at(now_s + engine.core.begin_step(now_s).duration_s, lambda then_s: self._stepped(engine, then_s))

    def _stepped(self, engine: _Engine, now_s: float) -> None:
        for running in engine.core.end_step(now_s):
            asked = self._running[running.seq_id]
            assert asked.place is not None
            if running.emitted_tokens == 1:
                asked.ttft_s = now_s - asked.at_s
                self._load.mark_first_token(asked.place)
                if self.admission is not None and asked.ticket is not None:
                    self.admission.first_token(asked.ticket, now_s - asked.dispatched_s)
            if running.status is Status.FINISHED:
                asked.ended_s = now_s
                del self._running[running.seq_id]
                self._load.remove_request(asked.place)
                if self.admission is not None and asked.ticket is not None:
                    self.admission.record_end(asked.ticket, None)
        self._serve(now_s)
        self._step(engine, now_s)

    def _serve(self, now_s: float) -> None:
        if self.admission is None:
            return
        while (ticket := self.admission.next(now_s)) is not None:
            asked = self._waiting.pop(ticket.number)
            if ticket.state == OVER:
                self._refuse(asked, self.admission.refuse_late(ticket, now_s), now_s)
            else:
                self._dispatch(asked, now_s)

    def _sweep(self, now_s: float) -> None:
        self._at(now_s + _SWEEP_S, self._sweep)
        if self.admission is None:
            return
        self.admission.update_capacity([engine.view for engine in self._engines.values()], now_s)
        for ticket in list(self.admission.expire_late(now_s)):
            self._refuse(self._waiting.pop(ticket.number), self.admission.refuse_late(ticket, now_s), now_s)
        self._serve(now_s)

    def _send_heartbeat(self, now_s: float) -> None:
        self._at(now_s + _HEARTBEAT_S, self._send_heartbeat)
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
                prefill_ms_per_token=engine.rates.prefill_ms_per_token,
                kv_capacity_tokens=former.kv_capacity_tokens,
            )
            self._index.put(former, engine.view)


def _engines(shape: Shape) -> Iterator[_Engine]:
    limits = EngineLimits(
        max_model_len_tokens=min(shape.kv_tokens, 131_072),
        max_num_seqs=shape.max_num_seqs,
        max_num_batched_tokens=shape.batched_tokens,
        num_kv_blocks=shape.kv_tokens // 16,
        enable_prefix_caching=False,  # every prompt is new: the cache would only cost hashing
    )
    costs = StepCosts(
        overhead_s=shape.step_ms / 1e3,
        prefill_s_per_token=shape.prefill_us_per_token / 1e6,
        decode_s_per_seq=shape.decode_us_per_seq / 1e6,
    )
    for number in range(shape.replicas):
        view = ReplicaView(
            ReplicaId(f"r{number}"), POOL, "", 0, "ready", 0, 0, 0.0, frozenset(), 50.0,
            shape.prefill_us_per_token / 1000, kv_capacity_tokens=shape.kv_tokens,
        )  # fmt: skip
        yield _Engine(view, EngineCore(limits, costs, Random(number)))
