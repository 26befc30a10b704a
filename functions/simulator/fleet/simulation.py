"""A pool of replicas, the gateways before it, and what is asked of them, in virtual time.

    simulate(Setting(replicas=8, profile=PROFILES["h100-8b"]), workload) -> Outcome

Deterministic: the same setting, workload and seed give the same outcome on any machine. Gateways decide with
`functions.decisions` unchanged and see replicas through beats that are a second apart and arrive late.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from math import inf
from zlib import crc32

from functions.api.ids import PoolName, ReplicaId
from functions.api.snapshot import AdmissionEntry, RoutingEntry
from functions.decisions.bands import rules_of
from functions.decisions.baselines import RouterName
from functions.decisions.catalogue_policies import DEFAULT_ADMISSION, DEFAULT_ROUTING
from functions.decisions.replicas import PoolIndex
from functions.simulator.events import Events
from functions.simulator.fleet.engine_profile import EngineProfile
from functions.simulator.fleet.fluid_engine import Work
from functions.simulator.fleet.gateway import Gateway, Request
from functions.simulator.fleet.outcome import BandOutcome, Outcome
from functions.simulator.fleet.replica import Replica
from functions.simulator.workload.asked import Asked

POOL = PoolName("base")
SLO_S = 1.5  # of a band that promises nothing: what the platform is to keep for 99 of 100
_BEAT_S = 1.0
_SWEEP_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One pool and its gateways."""

    replicas: int
    profile: EngineProfile
    gateways: int = 1
    router: RouterName = "shoal"
    routing: RoutingEntry = DEFAULT_ROUTING
    admission: AdmissionEntry | None = DEFAULT_ADMISSION  # None: whoever comes is dispatched
    block_tokens: int = 512  # of the workload
    beat_delay_s: float = 0.05
    extra_s: float = 600.0  # after the last request, for what is still under way


def simulate(setting: Setting, workload: Iterable[Asked]) -> Outcome:
    return Simulation(setting, workload).run()


class Simulation:
    def __init__(self, setting: Setting, workload: Iterable[Asked]) -> None:
        self._setting = setting
        self._workload: Iterator[Asked] = iter(workload)
        self.events = Events()
        rules = rules_of(setting.admission or DEFAULT_ADMISSION)
        self.outcome = Outcome(tuple(BandOutcome(rule.slo_s or SLO_S) for rule in rules))
        self._index = PoolIndex()
        self._under_way = 0
        self._last_s: float | None = None  # when the last request came
        self.replicas = {replica.id: replica for replica in self._new_replicas()}
        self.gateways = [self._new_gateway(number) for number in range(setting.gateways)]
        self._works = 0

    def run(self) -> Outcome:
        self._expect()
        for gateway in self.gateways:
            self._sweep(gateway)
        self.events.run(self._is_over, inf)
        return self._summed_up()

    def _is_over(self) -> bool:
        if self._last_s is None:
            return False
        return not self._under_way or self.events.now_s >= self._last_s + self._setting.extra_s

    # the workload

    def _expect(self) -> None:
        """The next request, when its time comes."""
        asked = next(self._workload, None)
        if asked is None:
            self._last_s = self.events.now_s
            return
        self.events.at(asked.at_s, partial(self._come, asked))

    def _come(self, asked: Asked) -> None:
        self._under_way += 1
        self._gateway_of(asked).come(asked)
        self._expect()

    def _ended(self) -> None:
        self._under_way -= 1

    def _gateway_of(self, asked: Asked) -> Gateway:
        """A client's connection stays where it is; a request without a session may come to anybody."""
        if len(self.gateways) == 1:
            return self.gateways[0]
        key = asked.session or f"{asked.tenant}{asked.at_s}"
        return self.gateways[crc32(key.encode()) % len(self.gateways)]

    # engines

    def _send(self, request: Request, replica_id: ReplicaId) -> None:
        replica = self.replicas[replica_id]
        asked = request.asked
        self._works += 1
        work = Work(self._works, asked.prompt_tokens, asked.output_tokens, request, blocks=asked.blocks)
        replica.engine.add(work, self.events.now_s)
        self._tell(replica)

    def _wake(self, replica: Replica) -> None:
        now_s = self.events.now_s
        if now_s < replica.wake_s:
            return  # it was to be earlier since; that has been
        replica.wake_s = inf
        if now_s >= replica.engine.next_s:
            replica.engine.advance(now_s)
        self._tell(replica)

    def _tell(self, replica: Replica) -> None:
        """The gateways of what came of it; and look again at the next change."""
        engine = replica.engine
        while engine.first or engine.over:
            first, engine.first = engine.first, []
            over, engine.over = engine.over, []
            for work in first:
                request: Request = work.owner  # type: ignore[assignment]
                request.gateway.first(request)
            for work in over:
                self._under_way -= 1
                self.outcome.preemptions += work.preemptions
                request = work.owner  # type: ignore[assignment]
                request.gateway.over(request)
        if engine.next_s < replica.wake_s:
            replica.wake_s = engine.next_s
            self.events.at(engine.next_s, partial(self._wake, replica))

    def _beat(self, replica: Replica) -> None:
        replica.engine.advance(self.events.now_s)
        self._tell(replica)
        former = replica.view
        self.events.after(self._setting.beat_delay_s, partial(self._index.put, former, replica.beat()))
        self.events.after(_BEAT_S, partial(self._beat, replica))

    def _sweep(self, gateway: Gateway) -> None:
        gateway.sweep()
        self.events.after(_SWEEP_S, partial(self._sweep, gateway))

    # what there is

    def _new_replicas(self) -> Iterator[Replica]:
        setting = self._setting
        for number in range(setting.replicas):
            replica = Replica(
                ReplicaId(f"r{number:04d}"),
                POOL,
                setting.profile,
                block_tokens=setting.block_tokens,
                gaps=self.outcome.gaps,
            )
            self._index.put(None, replica.view)
            self.events.at(_BEAT_S * (number + 1) / setting.replicas, partial(self._beat, replica))
            yield replica

    def _new_gateway(self, number: int) -> Gateway:
        setting = self._setting
        gateway = Gateway(
            POOL, self._index, self.events, self.outcome,
            send=self._send, shed=self._ended,
            admission=setting.admission, routing=setting.routing, router=setting.router,
            block_tokens=setting.block_tokens, name=f"g{number}-",
        )  # fmt: skip
        for replica in self.replicas.values():
            gateway.heard(replica.view)
        return gateway

    def _summed_up(self) -> Outcome:
        outcome = self.outcome
        outcome.seconds = self.events.now_s
        outcome.events = self.events.happened
        for replica in self.replicas.values():
            outcome.replica_seconds += self.events.now_s
            outcome.busy_seconds += replica.engine.busy_s
            if replica.engine.cache is not None:
                outcome.prompt_tokens += replica.engine.cache.asked_tokens
                outcome.hit_tokens += replica.engine.cache.hit_tokens
        return outcome
