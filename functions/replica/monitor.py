"""The monitor: once a second, look at the engine, judge it, and probe it where looking is not enough.

A tick takes at most one check timeout, whatever the engine does; a probe runs beside the ticks.
"""

import asyncio
import logging

from functions.api.ids import EngineName
from functions.decisions.health import engine as engine_health
from functions.decisions.health import engine_rates
from functions.decisions.health.engine import Evidence, HealthAnswer, HealthPolicy, Probe
from functions.engines.client import EngineClient
from functions.engines.errors import EngineError, EngineHung, EngineUnreachable
from functions.engines.metrics import EngineMetrics
from functions.fleet.tasks import Supervised
from functions.replica import checks
from functions.replica.checks import Prober
from functions.replica.status import Adapters, AgentStatus, Load

TICK_S = 1.0

_log = logging.getLogger(__name__)


class Monitor:
    def __init__(
        self, status: AgentStatus, engine: EngineClient, prober: Prober, policy: HealthPolicy, tasks: Supervised
    ) -> None:
        self._status = status
        self._engine = engine
        self._prober = prober
        self._policy = policy
        self._tasks = tasks
        self._metrics: EngineMetrics | None = None
        self._version_is_due = False
        self.metrics_failures = 0  # looks at a listening engine whose metrics did not come

    async def run(self) -> None:
        clock = self._status.clock
        while True:
            started_s = clock()
            await self.tick()
            await asyncio.sleep(max(0.0, started_s + TICK_S - clock()))

    async def tick(self) -> None:
        """Look, judge, say so, probe."""
        look = await checks.look(self._engine)
        now_s = self._status.clock()
        if look.metrics is not None:
            self._take(look.metrics, now_s)
        elif look.health == "ok":
            self.metrics_failures += 1
        evidence = Evidence(
            health=look.health,
            counters=checks.counters_of(look.metrics) if look.metrics is not None else None,
            outstanding=self._status.load.outstanding,
            probe=self._probe(look.health, now_s),
        )
        self._judge(evidence, now_s)
        if self._version_is_due:
            await self._learn_version()
        if self._status.computes and engine_health.probe_due(self._status.health, evidence, now_s, self._policy):
            self._prober.begin()
            self._tasks.once("probe", self._prober.run())

    def _probe(self, health: HealthAnswer, now_s: float) -> Probe:
        """An engine that sleeps or falls asleep makes no token, and is well where its server says so."""
        if not self._status.computes and health == "ok":
            return Probe("answered", started_s=now_s, ended_s=now_s)
        return self._prober.newest

    def _take(self, metrics: EngineMetrics, now_s: float) -> None:
        status = self._status
        status.load_read_s = now_s
        status.busy_adapters = frozenset(map(EngineName, metrics.running_adapters | metrics.waiting_adapters))
        status.load = checks.load_of(metrics, self._metrics)
        status.rates = engine_rates.update(status.rates, checks.rate_counters_of(metrics, self._prober))
        self._metrics = metrics

    def _judge(self, evidence: Evidence, now_s: float) -> None:
        status = self._status
        before = status.health
        status.health = engine_health.judge(before, evidence, now_s, self._policy)
        status.condemned = engine_health.condemned(status.health, now_s, self._policy)
        status.judged_s = now_s
        if status.health.phase == before.phase:
            return
        _log.warning("engine %s -> %s: %s", before.phase, status.health.phase, status.health.reason or "it answers")
        if status.health.phase == "dead":
            status.load, status.adapters = Load(), Adapters()  # nothing runs in a process that is gone
            status.busy_adapters = frozenset()
            self._metrics = None
            status.asleep = False  # whoever is started in its place is awake
        self._version_is_due = status.health.phase == "ready"

    async def _learn_version(self) -> None:
        """Once for each time that it becomes ready; asked again where no answer came, as from one that is busy."""
        try:
            self._status.engine_version = await self._engine.version()
            self._version_is_due = False
        except EngineError as error:
            self._version_is_due = isinstance(error, EngineHung | EngineUnreachable)
            _log.info("the engine does not tell its version: %s", error)
