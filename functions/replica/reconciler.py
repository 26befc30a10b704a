"""The adapter reconciler: once a second, compare the adapters in the snapshot with those in the engine, and act.

It is level-triggered: it reads the engine's own list each time. A restarted engine is filled again without a notice,
and a restarted agent adopts the loaded adapters. Each load is a separate task, so a slow download delays no other
load. `decisions.adapters.plan.plan` decides what to do. A gateway requests a cold adapter by `load`, which enters the
next plan immediately.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from functions.api.ids import EngineName, PoolName, TenantId
from functions.artifacts.errors import ArtifactError, ArtifactMissing, ArtifactRefused
from functions.decisions.adapters import plan as decisions
from functions.decisions.adapters.plan import (
    AdapterDemand,
    AdapterPlan,
    AdapterPolicy,
    AdapterState,
    ColdLoad,
    EngineAdapters,
    WantedAdapter,
)
from functions.decisions.catalogue import Catalogue
from functions.engines.client import EngineClient, EngineModel
from functions.engines.errors import EngineError, EngineRefused
from functions.fleet.tasks import Supervised
from functions.replica.cold_calls import ColdCalls, ColdLoadAnswer, Tier
from functions.replica.disk_tier import DiskNeeds
from functions.replica.load_spans import LoadEnd, LoadOutcome
from functions.replica.source import AdapterSource
from functions.replica.status import Adapters, AgentStatus

PASS_INTERVAL_S = 1.0
BUSY_KNOWN_S = 3.0  # with older metrics the engine may run anything, so nothing is unloaded, as without the bus

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reports:
    """Callbacks for events; each runs on the agent's loop and must not block."""

    loaded: Callable[[Tier, float], None]  # an adapter was loaded: its former tier, and the seconds it took
    failed: Callable[[str], None]  # a load ended as `refused` (artifact or engine) or `failed` (try again)
    disk_changed: Callable[[], None]  # artifacts were added, or are no longer needed
    ended: Callable[[LoadEnd], None] | None = None  # a load ended in any way; None: no spans


class AdapterReconciler:
    def __init__(
        self,
        status: AgentStatus,
        engine: EngineClient,
        source: AdapterSource,
        policy: AdapterPolicy,
        tasks: Supervised,
        *,
        reports: Reports,
        needs: DiskNeeds,
        heard: Callable[[], bool],
    ) -> None:
        """`heard` returns True if heartbeats reach the bus."""
        self._status = status
        self._engine = engine
        self._source = source
        self._policy = policy
        self._tasks = tasks
        self._reports = reports
        self._heard = heard
        self._state = AdapterState()
        self._demand: AdapterDemand | None = None
        self._listed: frozenset[EngineName] = frozenset()  # adapters in the engine's last list
        self._loading: set[EngineName] = set()
        self._unloading: set[EngineName] = set()
        self._calls = ColdCalls()
        self._needs = needs
        self.engine_turn = asyncio.Lock()  # one load at a time, since each stalls a step; none while it falls asleep
        self._wake = asyncio.Event()

    def set_max_adapters(self, max_adapters: int) -> bool:
        """Set the number of adapters that the engine holds at most. Return True if it changed."""
        before, self._policy = self._policy, replace(self._policy, max_adapters=max_adapters)
        return before != self._policy

    def follow(self, catalogue: Catalogue) -> None:
        """Take the pool's adapters and the epoch from a new snapshot; the next pass starts immediately."""
        self._demand = decisions.build_demand(catalogue.snapshot, PoolName(self._status.identity.pool))
        self._status.snapshot_epoch = catalogue.epoch
        self._wake.set()

    async def load(self, name: EngineName, wait_s: float) -> ColdLoadAnswer:
        """Load an adapter that a gateway needs now, or find it loaded. Return the result: "timed_out" if it is not
        decided within `wait_s` seconds, and immediately if no load is possible."""
        engine, now_s = self._engine_now(), self._status.clock()
        not_now = self._not_now(name, engine)
        if self._demand is None or not_now is not None:
            return not_now or _NO_PLAN
        request = (name, ColdLoad(now_s, now_s + wait_s))
        leaving = name in self._state.withdrawn_since_s
        verdict, self._state = decisions.request_load(self._demand, engine, self._state, request, self._policy)
        if verdict == "accepted":
            self._source.hurry(self._demand.by_name[name].digest)  # in case it is being fetched ahead of need
            self._wake.set()
            return await self._calls.wait(name, wait_s)
        if verdict == "loaded":
            tier: Tier = "slot" if name in engine.busy else "host"
            self._reports.loaded(tier, 0.0)
            if leaving:
                self._wake.set()  # so that it is advertised again
            return ColdLoadAnswer("loaded", tier=tier)
        if verdict in ("refused", "failed"):
            told = str(self._state.failures[name])
            return ColdLoadAnswer("refused" if verdict == "refused" else "failed", told)
        return _UNKNOWN if verdict == "unknown" else _TOO_MANY

    def _not_now(self, name: EngineName, engine: EngineAdapters) -> ColdLoadAnswer | None:
        """Return an answer if no load is possible at all now (the replica is not ready, or too many calls wait), else
        None."""
        phase, reason = self._status.phase()
        if phase != "ready":
            return ColdLoadAnswer("not_ready", f"{phase}: {reason}")
        if not self._status.adapters.known:
            return _NO_PLAN
        return _TOO_MANY if self._calls.full and name not in engine.loaded else None

    async def run(self) -> None:
        while True:
            await self.reconcile()
            try:
                async with asyncio.timeout(PASS_INTERVAL_S):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def reconcile(self) -> None:
        """Run one pass: list the engine's adapters, start loads, unload, update the status and answer waiting calls. If
        the engine is not ready, answer them only. A sleeping engine keeps its adapters: its adapter memory is missing
        until it is woken."""
        self._wake.clear()
        if self._demand is None or not self._engine_is_ready():
            self._listed = frozenset()
            self._calls.settle_all(ColdLoadAnswer("not_ready", "the engine is not ready"))
            return
        try:
            listed = await self._engine.models()
        except EngineError as error:
            _log.info("the engine's adapters cannot be listed: %s", error)
            return
        if not self._engine_is_ready():  # it died meanwhile: the list may be another process's
            return
        self._listed = frozenset(EngineName(model.name) for model in listed if _is_ours(model))
        plan = decisions.plan(self._demand, self._engine_now(), self._state, self._status.clock(), self._policy)
        self._state = plan.state
        for adapter in plan.load if not self._status.asleep else ():
            self._loading.add(adapter.name)
            urgent = adapter.name in plan.state.cold_loads
            self._tasks.once(f"load {adapter.name}", self._load(adapter, urgent=urgent))
        if self._needs.observe(self._listed, self._loading, self._status.clock()):
            self._reports.disk_changed()
        self._update_status(plan)
        self._settle_calls(plan)
        for name in plan.unload if not self._status.asleep else ():
            if name in self._state.withdrawn_since_s:  # a gateway may have requested it while others were unloaded
                await self._unload(name)

    def _engine_is_ready(self) -> bool:
        return self._status.health.phase == "ready"

    def _engine_now(self) -> EngineAdapters:
        loaded = self._listed - self._unloading
        busy = self._status.busy_adapters & loaded
        heard = self._heard() and self._status.clock() - self._status.load_read_s <= BUSY_KNOWN_S
        return EngineAdapters(loaded=loaded, busy=busy, loading=frozenset(self._loading), heard=heard)

    def _update_status(self, plan: AdapterPlan) -> None:
        before = self._status.adapters
        self._status.adapters = Adapters(
            known=True,
            advertised=plan.advertise,
            loading=tuple(name for name in plan.awaited if not before.known or name in before.loading)
            if not self._status.asleep
            else (),
            reason=plan.reason,
            room=plan.room,
            cold=plan.cold,
            failures={name: str(failure) for name, failure in plan.state.failures.items()},
            without_room=plan.without_room,
        )
        if plan.reason and plan.reason != before.reason:
            _log.warning("adapters not loaded: %s", plan.reason)

    def _settle_calls(self, plan: AdapterPlan) -> None:
        """Answer waiting calls that this plan decides: loaded, no room, or dropped by the snapshot."""
        assert self._demand is not None
        for name in self._calls.names:
            if name in plan.refused:
                self._calls.settle(name, ColdLoadAnswer("no_room", plan.refused[name]))
            elif name in plan.advertise:
                self._calls.settle(name, ColdLoadAnswer("loaded", tier="host"))
            elif name not in self._demand.by_name:
                self._calls.settle(name, _UNKNOWN)

    async def _load(self, adapter: WantedAdapter, *, urgent: bool) -> None:
        started_s = self._status.clock()
        name = adapter.name

        def ended(outcome: LoadOutcome, tier: Tier | None = None, reason: str = "") -> None:
            if self._reports.ended is not None:
                took_s = self._status.clock() - started_s
                self._reports.ended(LoadEnd(name, adapter.digest, urgent, took_s, outcome, tier, reason))

        try:
            obtained = await self._source.obtain(adapter.digest, _tenant_of(name), urgent=urgent)
            async with self.engine_turn:
                if self._status.asleep:
                    return  # planned again when the engine is awake; the files are there then
                await self._put_into_engine(name, str(obtained.path))
        except (ArtifactError, EngineError) as error:
            reason = _printable(str(error))
            ended(self._fail(name, reason, refused=_is_final(error)), reason=reason)
        except Exception as error:  # an agent's bug is retried with the same pauses, and reported to waiting calls
            _log.exception("adapter %s could not be loaded", name)
            reason = f"a fault of the agent's own: {type(error).__name__}"
            ended(self._fail(name, reason, refused=False), reason=reason)
        else:
            took_s = self._status.clock() - started_s
            self._listed |= {name}
            self._reports.loaded(obtained.tier, took_s)
            self._calls.settle(name, ColdLoadAnswer("loaded", tier=obtained.tier))
            ended("loaded", obtained.tier)
            _log.info("adapter %s loaded from %s in %.0f ms", name, obtained.tier, took_s * 1000)
        finally:
            self._loading.discard(name)
            self._reports.disk_changed()
            self._wake.set()

    def _fail(self, name: EngineName, reason: str, *, refused: bool) -> Literal["refused", "failed"]:
        outcome: Literal["refused", "failed"] = "refused" if refused else "failed"
        self._state = decisions.record_failed_load(
            self._state, name, reason, self._status.clock(), self._policy, refused=refused
        )
        self._reports.failed(outcome)
        self._calls.settle(name, ColdLoadAnswer(outcome, reason))
        return outcome

    async def _put_into_engine(self, name: EngineName, path: str) -> None:
        """Load the adapter, or accept that the engine has it already.

        An agent that was killed may have left a load under way, which the engine finishes before it rejects this one.
        """
        try:
            await self._engine.load_adapter(name, path)
        except EngineRefused:
            if name not in {model.name for model in await self._engine.models()}:
                raise

    async def _unload(self, name: EngineName) -> None:
        self._unloading.add(name)
        try:
            await self._engine.unload_adapter(name)
        except EngineError as error:
            _log.warning("adapter %s could not be unloaded: %s", name, error)
        else:
            self._listed -= {name}
            self._wake.set()
            _log.info("adapter %s unloaded", name)
        finally:
            self._unloading.discard(name)


_TOO_MANY = ColdLoadAnswer("no_room", "too many cold loads wait at this replica")
_NO_PLAN = ColdLoadAnswer("not_ready", "no snapshot yet, or the engine's adapters have not been listed yet")
_UNKNOWN = ColdLoadAnswer("unknown", "this replica's snapshot does not name the adapter (yet): retry shortly")


def _is_ours(model: EngineModel) -> bool:
    """Return True for an adapter that an agent loaded, named by a digest. An operator's adapters stay untouched."""
    return model.is_adapter and "@sha256:" in model.name


def _is_final(error: ArtifactError | EngineError) -> bool:
    """Return True if the load would fail in the same way if retried soon, here or at another replica."""
    if isinstance(error, EngineRefused):
        return not error.retryable
    return isinstance(error, ArtifactRefused | ArtifactMissing)


def _tenant_of(name: EngineName) -> TenantId | None:
    tenant, slash, _ = name.partition("/")
    return TenantId(tenant) if slash else None


def _printable(text: str) -> str:
    """Replace unprintable characters in an engine's or a store's text by spaces, for a log line and a terminal."""
    return "".join(character if character.isprintable() else " " for character in text)
