"""Autoscaler of one machine: decide about once a second, then let processes and agents follow.

One pass:
    1  fetch the registry's report
    2  decide each pool's size: the operator's number, else the autoscaler's, else the YAML's
    3  limit it to what the machine can run (slots of awake engines, ports, memory)
    4  compute the next allocation; a smaller one only if the last change of processes is done
    5  save it to disk, and write the files that tell starting agents their role
    6  let the processes follow, in the background
    7  notify running agents, last: an agent that hangs delays nothing else

So a promotion takes one short request to an agent. If the controller is suspended, nothing is changed.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from functions.api.loader import Loaded
from functions.controller.autoscaling.allocation import (
    Allocation,
    SlotDemand,
    grant_slots,
    next_allocation,
    role_orders,
)
from functions.controller.autoscaling.kept import Forecasts, KeptSpeeds, write_sizes
from functions.controller.autoscaling.scaler import DesiredSize, Policies, PoolSize, Scaler
from functions.controller.autoscaling.slots_in_use import (
    Since,
    SlotsInUse,
    count_ending_engines,
    lasting_states,
    replicas_by_number,
    shortage_text,
    update_since,
    without_lost,
)
from functions.controller.local.layout import StateLayout
from functions.controller.local.lifecycle import RUNNING
from functions.controller.local.ports import MAX_SLOTS
from functions.controller.local.reconciler import Reconciler
from functions.controller.local.settings import LocalSettings
from functions.controller.local.slots import usable_cores
from functions.controller.local.supervisor import Supervisor
from functions.controller.local.surge import has_memory
from functions.controller.snapshot.publication import LocalClients
from functions.controller.snapshot.registry_client import EpochConflict, RegistryRefused, RegistryUnavailable
from functions.decisions.autoscaling.accelerator_slots import (
    HeldSlots,
    SlotAllotment,
    allot_slots,
    sleepers_without_slot,
)
from functions.fleet.pool_board import PoolReport

PASS_INTERVAL_S = 1.0
TELL_REGISTRY_EVERY_S = 10.0
_ONE_AT_A_TIME = "another engine is starting, and the memory that it needs is not known yet"

_log = logging.getLogger(__name__)


class LocalScaling:
    """Owned by one event loop."""

    def __init__(
        self,
        layout: StateLayout,
        settings: LocalSettings,
        *,
        reconciler: Reconciler,
        supervisor: Supervisor,
        source: LocalClients,
        is_suspended: Callable[[], bool],
        allocations: Mapping[str, Allocation],
        on_report: Callable[[PoolReport | None], None] = lambda _: None,
    ) -> None:
        """`allocations` were saved by an earlier controller; `on_report` is called with each report."""
        self._on_report = on_report
        self._layout = layout
        self._settings = settings
        self._reconciler = reconciler
        self._supervisor = supervisor
        self._source = source
        self._is_suspended = is_suspended
        self._allocations = {name: allocation.up_to(MAX_SLOTS) for name, allocation in allocations.items()}
        self._speeds = KeptSpeeds(layout.scaling_file)
        self._forecasts = Forecasts(layout.forecasts_file)
        self._scaler = Scaler("disk", self._speeds.known, self._forecasts.known)
        self._policies = Policies()
        self._wanted: dict[str, DesiredSize] = {}
        self._held: dict[str, str] = {}  # reason why a pool has fewer replicas than it should
        self._since: Since = {}
        self._asleep: frozenset[str] = frozenset()
        self._trouble = ""
        self._told_s = float("-inf")
        self._changed = asyncio.Event()

    def set_policies(self, revision: str, loaded: Loaded) -> None:
        """Use the policies of this revision from now on, and run a pass at once. Do nothing if the revision is already
        in use."""
        if revision != self._policies.revision:
            self._policies = Policies.of(revision, loaded)
            self._changed.set()

    def pool_sizes(self) -> list[PoolSize]:
        operators = self._reconciler.wanted.target.replicas
        return [
            PoolSize.from_allocation(
                pool.name, self._allocation(pool.name, pool.replicas), self._wanted.get(pool.name), operators, why
            )
            for pool in self._reconciler.declared
            for why in (self._held.get(pool.name) or self._trouble,)
        ]

    def sleeping_replicas(self) -> frozenset[str]:
        """Return the ids of the replicas that held no accelerator in the last pass."""
        return self._asleep

    def restore_sizes(self) -> None:
        """Restore the saved sizes; call after running processes are adopted and before any is started. Blocks. Sleeping
        replicas that no longer run are dropped: they would all load at the same time, without slots. They are added
        again like new replicas."""
        running = frozenset(self._running_replicas())
        for pool in self._reconciler.declared:
            if pool.sleeps and pool.name in self._allocations:
                self._allocations[pool.name] = without_lost(self._allocations[pool.name], pool.name, running)
        _write(self._layout, self._allocations, self._covered(self._allocations))
        self._reconciler.rescale(
            {name: allocation.count for name, allocation in self._covered(self._allocations).items()}
        )

    async def run(self) -> None:
        """Run passes every PASS_INTERVAL_S, and at once when the policies change, until cancelled."""
        while True:
            await self._pass()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PASS_INTERVAL_S):
                    await self._changed.wait()
            self._changed.clear()

    # one pass

    async def _pass(self) -> None:
        report = await self._fetch_report()
        self._on_report(report)
        in_use = self._slots_in_use(report)
        self._asleep = frozenset(f"{name}-{number}" for name, pool in in_use.items() for number in pool.asleep)
        held, leaving = {name: pool.held_slots() for name, pool in in_use.items()}, self._count_ending(in_use)
        self._decide_sizes(report, in_use, sleepers_without_slot(held, leaving, self._slots()))
        is_suspended = self._is_suspended()
        if not is_suspended:  # no await before this line: a push could add pools that `in_use` lacks
            await self._save_allocations(self._next_allocations(in_use, held, leaving))
            self._reconciler.rescale(
                {name: allocation.count for name, allocation in self._covered(self._allocations).items()}
            )
        await asyncio.to_thread(self._speeds.save_speeds, self._scaler.speeds())
        await asyncio.to_thread(self._forecasts.keep, self._scaler.memories(), time.monotonic())
        if report is not None and not is_suspended:
            await self._notify_agents(report)
        await self._report_sizes()

    def _decide_sizes(
        self, report: PoolReport | None, in_use: Mapping[str, SlotsInUse], resting: Mapping[str, int]
    ) -> None:
        sizes = {name: pool.allocation.serving for name, pool in in_use.items()}
        policies = self._policies
        self._wanted = self._scaler.step(
            report, policies.scaling, policies.admission, sizes, time.time(), resting=resting, reading=policies.reading
        )

    async def _fetch_report(self) -> PoolReport | None:
        try:
            report = await (await self._source.pools_client()).report()
        except (RegistryUnavailable, RegistryRefused, EpochConflict, OSError) as error:
            self._trouble = f"the registry sends no report of the pools: {error}"
            return None
        self._trouble = "" if report.bus_connected else "the registry receives no heartbeats: the bus is unavailable"
        return report

    def _slots_in_use(self, report: PoolReport | None) -> dict[str, SlotsInUse]:
        in_use = {
            pool.name: SlotsInUse(
                self._allocation(pool.name, pool.replicas), pool.sleeps, replicas_by_number(report, pool.name)
            )
            for pool in self._reconciler.declared
        }
        if report is None or not report.bus_connected:
            return in_use
        states, now_s = {name: pool.states for name, pool in in_use.items() if pool.sleeps}, time.monotonic()
        self._since = update_since(self._since, states, now_s)
        return {name: replace(pool, lasting=lasting_states(self._since, name, now_s)) for name, pool in in_use.items()}

    def _count_ending(self, in_use: Mapping[str, SlotsInUse]) -> int:
        return count_ending_engines(self._running_replicas(), in_use)

    def _running_replicas(self) -> list[str]:
        """Return the ids of the replicas whose engines run."""
        engines = [i for i in self._supervisor.instances.values() if i.spec.role == "engine"]
        return [i.spec.replica_id for i in engines if i.spec.replica_id and i.state.phase in RUNNING]

    def _next_allocations(
        self, in_use: Mapping[str, SlotsInUse], held: Mapping[str, HeldSlots], leaving: int
    ) -> dict[str, Allocation]:
        demands = {pool.name: self._demand(pool.name, pool.replicas) for pool in self._reconciler.declared}
        allowed = self._fit_to_ports(demands, allot_slots(demands, held, leaving, self._slots()))
        self._held = {}
        may_grow, following = self._may_grow(), {}
        for name, pool in in_use.items():
            allocation, may_have = pool.allocation, allowed[name]
            ready = pool.awake | pool.asleep
            then = next_allocation(allocation, may_have.serving, may_have.warm, ready, pool.sleepers(may_have))
            if why := shortage_text(demands[name], may_have, pool, self._slots()):
                self._held[name] = why
            if then.count < allocation.count and not self._reconciler.wanted.settled:
                then, self._held[name] = allocation, "replicas are still starting or draining"
            elif then.count > allocation.count and may_grow:
                then, self._held[name] = then.up_to(allocation.count), may_grow
            elif then.count > allocation.count and self._is_small():
                then, may_grow = then.up_to(allocation.count + 1), _ONE_AT_A_TIME
            following[name] = then
        return following

    def _fit_to_ports(
        self, demands: Mapping[str, SlotDemand], allowed: Mapping[str, SlotAllotment]
    ) -> Mapping[str, SlotAllotment]:
        """Reduce the allotments to the machine's ports, which sleeping replicas need too. If a push declares more
        replicas, the others give way."""
        if sum(each.serving + each.warm for each in allowed.values()) <= MAX_SLOTS:
            return allowed
        asked = {name: SlotDemand(each.serving, each.warm, demands[name].least) for name, each in allowed.items()}
        fitting = grant_slots(asked, {}, MAX_SLOTS)
        return {name: SlotAllotment(each.serving, each.warm, allowed[name].wake) for name, each in fitting.items()}

    def _demand(self, name: str, declared: int) -> SlotDemand:
        operators = self._reconciler.wanted.target.replicas
        if operators is not None:
            return SlotDemand(operators, 0, operators)
        wanted = self._wanted.get(name)
        if wanted is None:
            allocation = self._allocation(name, declared)  # no report yet: the size stays
            return SlotDemand(allocation.serving, len(allocation.standby), declared)
        return SlotDemand(wanted.replicas, wanted.warm, min(wanted.replicas, declared))

    def _may_grow(self) -> str:
        """Return why no engine may be added now; "" if one may. Simulated engines and a number set by an operator may
        always be added."""
        if not self._is_small():
            return ""
        engines = [i for i in self._supervisor.instances.values() if i.spec.role == "engine"]
        if any(i.state.phase in ("pending", "starting") for i in engines):
            return _ONE_AT_A_TIME
        if not has_memory(i.state.pid for i in engines if i.state.pid is not None):
            return "this machine has too little free memory for another engine"
        return ""

    def _is_small(self) -> bool:
        """Return True if free memory must be checked before an engine is added: not for simulated engines, which need
        very little, and not if an operator set the number of replicas."""
        target = self._reconciler.wanted.target
        return target.engine != "sim" and target.replicas is None

    def _slots(self) -> int:
        """Return how many engines may be awake: `max_engines` of the settings, but at most MAX_SLOTS; if it is not set,
        MAX_SLOTS for simulated engines and otherwise the number of usable cores."""
        if self._settings.max_engines is not None:
            return min(MAX_SLOTS, self._settings.max_engines)
        return MAX_SLOTS if self._reconciler.wanted.target.engine == "sim" else usable_cores()

    async def _save_allocations(self, allocations: dict[str, Allocation]) -> None:
        """Log and save the allocations if they changed, before acting on them: a controller that dies in between finds
        what remains to be done."""
        if allocations == self._allocations:
            return
        for name, allocation in sorted(allocations.items()):
            if (before := self._allocations.get(name)) != allocation:
                _log.info("%s: %s", name, _change_text(before, allocation, self._wanted.get(name)))
        await asyncio.to_thread(_write, self._layout, allocations, self._covered(allocations))
        self._allocations = allocations

    async def _notify_agents(self, report: PoolReport) -> None:
        """Send an order to each agent whose heartbeat shows another role than its allocation; log those that cannot be
        reached."""
        orders = [
            order for name, allocation in self._allocations.items() for order in role_orders(report, name, allocation)
        ]
        if orders:
            for trouble in await (await self._source.role_notifier()).notify(orders):
                _log.warning("%s", trouble)

    def _covered(self, allocations: dict[str, Allocation]) -> dict[str, Allocation]:
        """Return the allocations of pools with a policy; the others have the size in their YAML, reported or not."""
        return {name: allocation for name, allocation in allocations.items() if self._policies.covers_pool(name)}

    def _allocation(self, name: str, declared: int) -> Allocation:
        kept_so = self._allocations.get(name) if self._policies.covers_pool(name) else None
        return kept_so or Allocation(self._reconciler.wanted.target.replicas or declared)

    async def _report_sizes(self) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s < TELL_REGISTRY_EVERY_S or not self._wanted:
            return
        # `_fetch_report` logs the error.
        with contextlib.suppress(RegistryUnavailable, RegistryRefused, EpochConflict, OSError):
            await (await self._source.pools_client()).put_desired(self._wanted)
            self._told_s = now_s


def _write(layout: StateLayout, allocations: dict[str, Allocation], to_keep: dict[str, Allocation]) -> None:
    """Write the allocations `to_keep` to the scaling file, and the standby files of all `allocations`; remove standby
    files of replicas that are not warm. A replica that starts later, or only during a change, must not start warm."""
    write_sizes(layout.scaling_file, to_keep)
    for pool, allocation in allocations.items():
        for number in range(max(MAX_SLOTS, allocation.count)):
            _set_standby_file(layout.standby_file(f"{pool}-{number}"), number in allocation.standby)


def _set_standby_file(file: Path, standby: bool) -> None:
    if standby:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    else:
        file.unlink(missing_ok=True)


def _change_text(before: Allocation | None, after: Allocation, wanted: DesiredSize | None) -> str:
    why = f" ({wanted.reason})" if wanted is not None else ""
    if before is None:
        return f"{after.serving} serve, {len(after.standby)} warm{why}"
    return f"{before.serving} -> {after.serving} serve, {len(before.standby)} -> {len(after.standby)} warm{why}"
