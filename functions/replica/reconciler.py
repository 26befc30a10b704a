"""The adapter reconciler: once a second, compare what the snapshot wants with what the engine has, and act on it.

Level-triggered: the engine's own list is asked each time, so an engine that was restarted is filled again without
anyone saying so, and an agent that was restarted adopts what is loaded. Each load is a task of its own (a slow
download holds up nobody else); the decision what to do is `decisions.adapters.plan`.
"""

import asyncio
import logging
from collections.abc import Callable

from functions.api.ids import EngineName, PoolName
from functions.artifacts.errors import ArtifactError
from functions.decisions import adapters as decisions
from functions.decisions.adapters import AdapterPlan, AdapterPolicy, AdapterState, EngineAdapters, WantedAdapter
from functions.decisions.catalogue import Catalogue
from functions.engines.client import EngineClient, EngineModel
from functions.engines.errors import EngineError
from functions.fleet.tasks import Supervised
from functions.replica.source import AdapterSource
from functions.replica.status import Adapters, AgentStatus

PASS_INTERVAL_S = 1.0

_log = logging.getLogger(__name__)


class AdapterReconciler:
    """`on_load(outcome, seconds)` hears of every ended load: `loaded`, `refused` (artifact) or `failed` (engine)."""

    def __init__(
        self,
        status: AgentStatus,
        engine: EngineClient,
        source: AdapterSource,
        policy: AdapterPolicy,
        tasks: Supervised,
        *,
        on_load: Callable[[str, float], None],
    ) -> None:
        self._status = status
        self._engine = engine
        self._source = source
        self._policy = policy
        self._tasks = tasks
        self._on_load = on_load
        self._state = AdapterState()
        self._wanted: tuple[WantedAdapter, ...] | None = None
        self._loading: dict[EngineName, bool] = {}  # name -> whether this is its first try
        self._engine_turn = asyncio.Lock()  # one load at a time: each of them stalls a step
        self._wake = asyncio.Event()

    def follow(self, catalogue: Catalogue) -> None:
        """A new snapshot; the next pass begins at once."""
        self._wanted = decisions.wanted_in(catalogue.snapshot, PoolName(self._status.identity.pool))
        self._status.snapshot_epoch = catalogue.epoch
        self._wake.set()

    async def run(self) -> None:
        while True:
            await self.reconcile()
            self._wake.clear()
            try:
                async with asyncio.timeout(PASS_INTERVAL_S):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def reconcile(self) -> None:
        """One pass. An engine that is not ready is left alone: what it holds will be asked when it is."""
        if self._wanted is None or self._status.health.phase != "ready":
            return
        try:
            listed = await self._engine.models()
        except EngineError as error:
            _log.info("the engine does not list its adapters: %s", error)
            return
        loaded = frozenset(EngineName(model.name) for model in listed if _is_ours(model))
        busy = self._status.busy_adapters & loaded
        engine = EngineAdapters(loaded=loaded, busy=busy, loading=frozenset(self._loading))
        plan = decisions.plan(self._wanted, engine, self._state, self._status.clock(), self._policy)
        self._state = plan.state
        for adapter in plan.load:
            self._loading[adapter.name] = adapter.name not in plan.left_out
            self._tasks.once(f"load {adapter.name}", self._load(adapter))
        self._tell(plan)
        for name in plan.unload:
            await self._unload(name)

    def _tell(self, plan: AdapterPlan) -> None:
        before = self._status.adapters.reason
        first_tries = tuple(sorted(name for name, first in self._loading.items() if first))
        self._status.adapters = Adapters(known=True, advertised=plan.advertise, loading=first_tries, reason=plan.reason)
        if plan.reason and plan.reason != before:
            _log.warning("adapters not loaded: %s", plan.reason)

    async def _load(self, adapter: WantedAdapter) -> None:
        started_s = self._status.clock()
        try:
            path = await self._source.obtain(adapter.digest)
            async with self._engine_turn:
                await self._engine.load_adapter(adapter.name, str(path))
        except (ArtifactError, EngineError) as error:
            now_s = self._status.clock()
            self._state = decisions.failed(self._state, adapter.name, _printable(str(error)), now_s, self._policy)
            self._on_load("refused" if isinstance(error, ArtifactError) else "failed", now_s - started_s)
        else:
            took_s = self._status.clock() - started_s
            self._on_load("loaded", took_s)
            _log.info("adapter %s loaded in %.0f ms", adapter.name, took_s * 1000)
        finally:
            self._loading.pop(adapter.name, None)
            self._wake.set()

    async def _unload(self, name: EngineName) -> None:
        try:
            await self._engine.unload_adapter(name)
        except EngineError as error:
            _log.warning("adapter %s could not be unloaded: %s", name, error)
        else:
            _log.info("adapter %s unloaded", name)


def _is_ours(model: EngineModel) -> bool:
    """Loaded by an agent: named by a digest. What an operator gave the engine by flag stays untouched."""
    return model.is_adapter and "@sha256:" in model.name


def _printable(text: str) -> str:
    """An engine's or a store's words, fit for a log line and a terminal."""
    return "".join(character if character.isprintable() else " " for character in text)
