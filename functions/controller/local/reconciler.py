"""Reconciler of the local fleet: changes processes to the pools of the desired revision and the operator's target.

Level-triggered: each pass compares what is wanted now with what runs now. A stalled pass (a replaced replica does not
become ready) is retried with growing pauses. Another desired state ends the wait and starts the next pass.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from functions.controller.local.context import PlanContext, context_from
from functions.controller.local.layout import StateLayout
from functions.controller.local.monitoring import write_agent_targets
from functions.controller.local.operations import NotReadyAgain, Operations, OperationSuperseded
from functions.controller.local.plan import plan_fleet
from functions.controller.local.pools import Pool, Target
from functions.controller.local.ports import MAX_SLOTS
from functions.controller.local.prepare.base_model import models_root
from functions.controller.local.settings import LocalSettings
from functions.controller.local.slots import TooManyReplicas, fit_replicas
from functions.controller.local.spec import ProcessSpec
from functions.controller.local.supervisor import Supervisor
from functions.controller.local.surge import Surge, all_that_had_slots, has_memory, one_more, one_more_of_each
from functions.decisions.health.backoff import BackoffPolicy, delay_s

RETRY = BackoffPolicy(base_s=10.0, cap_s=300.0)

FoldersByNumber = Callable[[int], tuple[str, ...]]  # from a pool's number of replicas to the folder of each

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class DesiredFleet:
    """Desired state of the processes, and the progress towards it."""

    target: Target = field(default_factory=Target)
    pools: tuple[Pool, ...] = ()  # with the wanted number of replicas each
    revision: str = ""
    stalled: str = ""  # reason why not all processes are as wanted
    settled: bool = False  # no process is left to change


class Reconciler:
    """Changes the processes to the desired fleet. Owned by one event loop. `until_published` waits until the data plane
    knows that a pool is removed; only then is the pool drained."""

    def __init__(
        self,
        layout: StateLayout,
        settings: LocalSettings,
        target: Target,
        *,
        until_published: Callable[[str], Awaitable[None]],
        on_done: Callable[[str, str], None],
        is_paused: Callable[[], bool],
        counts: Mapping[str, int],
        no_room: Callable[[Pool], str] = lambda _: "",
    ) -> None:
        """`counts` are the sizes that the autoscaler gave to pools; other pools have their YAML's size. `no_room`
        returns why no extra replica of a pool may start."""
        self.wanted = DesiredFleet(target=target)
        self.declared: tuple[Pool, ...] = ()  # as declared in the YAML
        self._counts = dict(counts)
        self._folders: Mapping[str, FoldersByNumber] = {}
        self._known_folders: Mapping[str, frozenset[str]] = {}
        self._layout = layout
        self._settings = settings
        self._until_published = until_published
        self._on_done = on_done  # called with the revision and why it stalled ("" if not)
        self._is_paused = is_paused
        self._no_room = no_room
        self._to_converge = asyncio.Event()
        self._failures = 0

    def set_desired(self, revision: str, pools: tuple[Pool, ...]) -> None:
        """Set the desired revision and its pools, and request a convergence, even if it is the current revision."""
        self.declared = pools
        self.wanted.revision, self.wanted.pools = revision, self._with_counts(pools)
        self._request_convergence()

    def rescale(self, counts: Mapping[str, int]) -> None:
        """Set the sizes of the pools that the autoscaler controls, warm replicas included; request a convergence if
        that changes any pool."""
        self._counts = dict(counts)
        counted = self._with_counts(self.declared)
        if counted != self.wanted.pools:
            self.wanted.pools = counted
            self._request_convergence()

    def assign_folders(self, folders: Mapping[str, FoldersByNumber], known: Mapping[str, frozenset[str]]) -> None:
        """Set the version of its base that each replica of a pool is started from; request a convergence if that
        changes any. `known` has all folders that a pool's replicas may run from."""
        self._folders, self._known_folders = dict(folders), dict(known)
        counted = self._with_counts(self.declared)
        if counted != self.wanted.pools:
            self.wanted.pools = counted
            self._request_convergence()

    def replicas_of(self, pool: str) -> int:
        """Return how many replicas the pool should have, without the extra one of a rollout; 0 for an unknown pool."""
        asked = self.wanted.target.replicas
        return next((asked or each.replicas for each in self.wanted.pools if each.name == pool), 0)

    def retarget(self, target: Target) -> None:
        if target != self.wanted.target:
            self.wanted.target = target
            self.wanted.pools = self._with_counts(self.declared)
            self._request_convergence()

    def specs(self, former_slots: dict[str, int], pools: tuple[Pool, ...] | None = None) -> dict[str, ProcessSpec]:
        """Return the specs by name of `pools`, or of the desired ones if None. Raises TooManyReplicas or BinaryMissing
        if they cannot be planned."""
        chosen = self.wanted.pools if pools is None else self._with_counts(pools)
        return plan_fleet(self.context(), chosen, self.wanted.target, former_slots)

    def candidates(
        self, former_slots: dict[str, int], pools: tuple[Pool, ...] | None = None
    ) -> list[dict[str, ProcessSpec]]:
        """Return all specs that a running process may be adopted with, the desired `specs` first. The others are one
        extra replica of each pool, in case an earlier controller was changing it, and every replica that the ledger
        names, because a replica that serves is drained, not ended."""
        chosen = self.declared if pools is None else pools
        context, target = self.context(), self.wanted.target
        return [
            self.specs(former_slots, chosen),
            *one_more_of_each(context, self._with_counts(chosen), target, former_slots),
            all_that_had_slots(context, chosen, target, former_slots),
            *(
                all_that_had_slots(context, [replace(pool, model=folder)], target, former_slots)
                for pool in chosen
                for folder in sorted(self._known_folders.get(pool.name, ()))
            ),
        ]

    def context(self) -> PlanContext:
        return context_from(self._settings, self._layout, models_root(self._layout, self.wanted.target.engine))

    async def run(self, supervisor: Supervisor, operations: Operations) -> None:
        """Reconcile until cancelled: whenever another state is wanted, and again after a stall. While paused, only the
        first pass is made: what ran before a controller's restart runs after it."""
        await self._to_converge.wait()
        self._to_converge.clear()
        await self._converge(supervisor, operations, self._to_converge.is_set)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s(self._failures, RETRY) if self._failures else None):
                    await self._to_converge.wait()
            self._to_converge.clear()
            if not self._is_paused():
                await self._converge(supervisor, operations, self._is_superseded)

    def _is_superseded(self) -> bool:
        return self._to_converge.is_set() or self._is_paused()

    async def _converge(self, supervisor: Supervisor, operations: Operations, superseded: Callable[[], bool]) -> None:
        try:
            await self._converge_once(supervisor, operations, superseded)
        except Exception:
            self._to_converge.set()  # `run` restarts and converges again
            raise

    async def _converge_once(
        self, supervisor: Supervisor, operations: Operations, superseded: Callable[[], bool]
    ) -> None:
        revision = self.wanted.revision
        try:
            wanted = self.specs(supervisor.slots())
            write_agent_targets(self._layout, wanted.values())
            if _removes_a_pool(supervisor, wanted):
                await self._until_published(revision)
            awaited = await operations.converge(wanted, superseded, self._surge(supervisor))
            self.wanted.settled = not self._to_converge.is_set()
            await operations.wait_all_ready(awaited, superseded)
        except OperationSuperseded:
            _log.info("%s: superseded by a newer desired state", revision)
            return
        except (NotReadyAgain, TooManyReplicas) as error:
            self.wanted.stalled = str(error)
            self._failures += 1
            _log.error("stopped changing processes, will retry: %s", error)
        else:
            self.wanted.stalled, self._failures = "", 0
        self.wanted.settled = not self._to_converge.is_set()
        self._on_done(revision, self.wanted.stalled)

    def _surge(self, supervisor: Supervisor) -> Surge:
        """Return the function that plans one extra replica of a pool; it returns no specs if settings, YAML, free
        memory, slots or accelerators do not allow one."""
        pools, target = self.wanted.pools, self.wanted.target

        def surge(pool: str) -> Mapping[str, ProcessSpec]:
            why = next((why for each in pools if each.name == pool and (why := self._no_room(each))), "")
            if why:
                _log.info("%s: no surge, so replicas are replaced one by one, each drained first: %s", pool, why)
                return {}
            instances = supervisor.instances.values()
            engines = [i.state.pid for i in instances if i.spec.pool == pool and i.spec.role == "engine"]
            if not self._settings.surge or not has_memory(pid for pid in engines if pid is not None):
                return {}
            return one_more(self.context(), pools, target, supervisor.slots(), pool)

        return surge

    def _with_counts(self, pools: tuple[Pool, ...]) -> tuple[Pool, ...]:
        """Return the pools with their wanted sizes, reduced if the declared replicas of other pools need the slots, and
        with their folders."""
        counts = fit_replicas({pool.name: pool.replicas for pool in pools}, self._counts, MAX_SLOTS)
        return tuple(self._with_folders(replace(pool, replicas=counts[pool.name])) for pool in pools)

    def _with_folders(self, pool: Pool) -> Pool:
        """Return the pool with the folders of its replicas, unchanged if none are assigned. A pool with several
        versions or an extra replica gets no further one for a change."""
        by_number = self._folders.get(pool.name)
        if by_number is None:
            return pool
        count = self.wanted.target.replicas or pool.replicas
        folders = by_number(count)
        may_surge = pool.may_surge and len(folders) == count and len(set(folders)) < 2
        return replace(pool, folders=folders, may_surge=may_surge)

    def _request_convergence(self) -> None:
        self.wanted.settled = False
        self._failures = 0
        self._to_converge.set()


def _removes_a_pool(supervisor: Supervisor, wanted: dict[str, ProcessSpec]) -> bool:
    stay = {spec.pool for spec in wanted.values()}
    return any(spec.pool not in stay for spec in supervisor.specs().values())
