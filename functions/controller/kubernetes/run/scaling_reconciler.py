"""Autoscaler of one term on a cluster: signals from the registry, sizes to the API server, roles to agents.

A pass runs every few seconds while this process leads and is not suspended:
    1  read the registry's fleet report
    2  list the services, by the label of their pool
    3  decide each pool's number, within the total for all (`SHOAL_CONTROLLER_MAX_ACCELERATORS`)
    4  write the number, warm replicas included, where the deployment mode has it (`kubernetes.scaling`)
    5  send agents their roles, serving or warm, so that as many serve as decided

While a pool moves between versions of its base, only `version_reconciler` writes its number. The number decided here
is then the pool's total, and all of its replicas serve.

Only an agent's heartbeats show that a replica is warm. A pod that is started again comes back serving, and one
replica is made warm again. Kubernetes chooses which pod a smaller Deployment ends; it is drained first.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Protocol

from functions.api.kinds.inference_service import POOL_LABEL, POOL_SERVICES
from functions.api.loader import Loaded
from functions.api.snapshot import AutoscalingEntry
from functions.controller.autoscaling.allocation import RoleOrder, SlotDemand, grant_slots, role_orders_by_count
from functions.controller.autoscaling.clients import PoolsClient, RoleNotifier, agents_http
from functions.controller.autoscaling.scaler import DesiredSize, Policies, Scaler
from functions.controller.autoscaling.signals import replicas_of
from functions.controller.kubernetes import scaling
from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.errors import Conflict, Gone, KindMissing, LeadershipLost, Retryable, Terminal
from functions.controller.kubernetes.objects import INFERENCE_SERVICE, Body, is_being_deleted, mapping_at
from functions.controller.kubernetes.run.conditions import ScalingStatus
from functions.controller.kubernetes.run.event_notes import EventNote, Regarding
from functions.controller.kubernetes.run.metrics import ControllerMetrics
from functions.controller.kubernetes.run.settings import KubernetesSettings, credentials_of
from functions.controller.kubernetes.scaling import ReplicaWrite
from functions.controller.snapshot.registry_client import (
    EpochConflict,
    RegistryClient,
    RegistryRefused,
    RegistryUnavailable,
)
from functions.decisions.capacity.service import accelerators_of
from functions.fleet.pool_board import PoolReport

_NO_BOUND = 10**9
_KUBE_ERRORS = (Retryable, Conflict, Terminal, KindMissing, Gone)  # not LeadershipLost: that ends the term

_log = logging.getLogger(__name__)


class Totals(Protocol):
    """Writer of the numbers of pools whose base has several versions."""

    turn: asyncio.Lock

    def load(self, api: KubeApi) -> None: ...

    def total_of(self, pool: str) -> int | None: ...

    def request_total(self, pool: str, total: int) -> ReplicaWrite: ...

    @property
    def surges(self) -> Mapping[str, int]: ...


class NoTotals:
    """Implementation without such pools."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.surges: Mapping[str, int] = MappingProxyType({})

    def load(self, api: KubeApi) -> None:
        """Do nothing, because no pool moves between versions."""

    def total_of(self, pool: str) -> int | None:
        return None

    def request_total(self, pool: str, total: int) -> ReplicaWrite:
        raise AssertionError(f"{pool} is not on its way")


class ScalingReconciler:
    """Autoscaler of one term, owned by one event loop."""

    def __init__(
        self,
        settings: KubernetesSettings,
        registry: RegistryClient,
        metrics: ControllerMetrics,
        *,
        wanted: Callable[[], tuple[str, Loaded] | None],
        is_suspended: Callable[[], bool],
        on_status: Callable[[Mapping[str, ScalingStatus]], None] = lambda _: None,
        on_report: Callable[[PoolReport | None], None] = lambda _: None,
        on_notes: Callable[[Iterable[EventNote]], None] = lambda _: None,
        totals: Totals | None = None,
    ) -> None:
        """`wanted` returns the published revision and its objects. `on_status` receives the policies' statuses by
        name when they change, `on_report` each fleet report, `on_notes` the Events of written numbers."""
        self._settings = settings
        self._pools = PoolsClient(registry)
        self._metrics = metrics
        self._wanted = wanted
        self._is_suspended = is_suspended
        self._on_status = on_status
        self._on_report = on_report
        self._on_notes = on_notes
        self._totals = totals or NoTotals()
        self._statuses: dict[str, ScalingStatus] = {}
        self._scaler = Scaler("cold")
        self._policies = Policies()
        self._said: dict[str, str] = {}  # the last trouble of each pool, logged once

    async def run(self, api: KubeApi) -> None:
        """Run passes, except while suspended, until the term ends with LeadershipLost."""
        credentials = await asyncio.to_thread(credentials_of, self._settings)
        former = partial(credentials.secret, "operate") if credentials.is_token else ""
        async with agents_http() as client:
            notifier = RoleNotifier(client, partial(credentials.secret, "standing"), former)
            while True:
                if not self._is_suspended():
                    await self._attempt(api, notifier)
                await asyncio.sleep(self._settings.scaling_interval_s)

    async def _attempt(self, api: KubeApi, notifier: RoleNotifier) -> None:
        """Run a pass. Only LeadershipLost is raised: any other error is logged with its traceback and must not end the
        term."""
        try:
            await self.step(api, notifier)
        except LeadershipLost:
            raise
        except Exception:
            _log.exception("unexpected error in a pass of the autoscaler")

    async def step(self, api: KubeApi, notifier: RoleNotifier) -> None:
        revision = self._wanted()
        if revision is None:
            return
        if revision[0] != self._policies.revision:
            self._policies = Policies.of(*revision)
        report = await self._report()
        self._on_report(report)
        async with self._totals.turn:
            allowed = await self._resize(api, report)
        if report is not None and allowed is not None:
            await self._send_role_orders(notifier, report, allowed)

    # inside

    async def _resize(self, api: KubeApi, report: PoolReport | None) -> dict[str, SlotDemand] | None:
        """Write the pools' numbers, statuses and metrics. Return the replicas that each pool may have, or None if the
        services cannot be read."""
        try:
            services, sizes = await asyncio.to_thread(self._services, api, report)
        except _KUBE_ERRORS as error:
            self._log_trouble("", f"the services cannot be read: {error}")
            return None
        policies = self._policies
        wanted = self._scaler.step(
            report, policies.scaling, policies.admission, sizes, time.time(), reading=policies.reading
        )
        allowed = self._allowed(wanted, sizes, {pool: accelerators_of(live) or 1 for pool, live in services.items()})
        contested: dict[str, str] = {}
        for pool, allotment in allowed.items():
            if pool in services:
                live = services[pool]
                written = await asyncio.to_thread(self._write, api, pool, live, allotment)
                contested[pool] = written.contested
                if written.changed:
                    self._on_notes([_scaled(live, written.replicas, allotment, wanted[pool].reason)])
        self._publish_statuses(report, allowed, contested)
        self._metrics.set_desired_replicas({pool: (each.cause, allowed[pool].serving) for pool, each in wanted.items()})
        return allowed

    async def _report(self) -> PoolReport | None:
        try:
            return await self._pools.report()
        except (RegistryUnavailable, RegistryRefused, EpochConflict) as error:
            self._log_trouble("", f"the registry's report of the pools cannot be read: {error}")
            return None

    def _services(self, api: KubeApi, report: PoolReport | None) -> tuple[dict[str, Body], dict[str, int]]:
        """Return the services of scaled pools, and the number that each asks for without its warm replicas. Blocks."""
        self._totals.load(api)
        entries = {str(entry.pool): entry for entry in self._policies.scaling}
        listing = api.list(INFERENCE_SERVICE, self._settings.models_namespace, label_selector=POOL_SERVICES)
        services = {}
        for live in listing.items:
            pool = str(mapping_at(live, "metadata", "labels").get(POOL_LABEL, ""))
            if pool in entries and not is_being_deleted(live):
                services[pool] = live
        numbers = {pool: self._number(api, pool, live) for pool, live in services.items()}
        warm = {pool: 0 if self._is_on_its_way(pool) else _warm_of(report, pool) for pool in numbers}
        sizes = {pool: _size(number, entries[pool], warm[pool]) for pool, number in numbers.items()}
        return services, {pool: size for pool, size in sizes.items() if size is not None}

    def _number(self, api: KubeApi, pool: str, live: Body) -> int | None:
        total = self._totals.total_of(pool)
        return scaling.requested_replicas(api, live) if total is None else total

    def _allowed(
        self, wanted: dict[str, DesiredSize], sizes: dict[str, int], costs: dict[str, int]
    ) -> dict[str, SlotDemand]:
        """Return the replicas that each pool may have of the accelerator limit, and log pools that may have fewer than
        wanted. `costs` are accelerators per replica; a replica on CPU counts as one."""
        least = {str(entry.pool): entry.min_replicas for entry in self._policies.scaling}
        warm = {pool: 0 if self._is_on_its_way(pool) else each.warm for pool, each in wanted.items()}
        demands = {pool: SlotDemand(each.replicas, warm[pool], least.get(pool, 0)) for pool, each in wanted.items()}
        most = self._settings.max_accelerators
        surges = sum(count * costs.get(pool, 1) for pool, count in self._totals.surges.items() if pool in demands)
        allowed = grant_slots(demands, sizes, most - surges if most is not None else _NO_BOUND, costs)
        for pool, allotment in allowed.items():
            short = allotment != demands[pool]
            each = f" ({costs[pool]} each)" if costs.get(pool, 1) > 1 else ""
            trouble = (
                f"{pool} wants more replicas{each} than the limit of {most} accelerators for all pools allows; it is "
                "set by SHOAL_CONTROLLER_MAX_ACCELERATORS"
            )
            self._log_trouble(pool, trouble if short else "")
        return allowed

    def _publish_statuses(
        self, report: PoolReport | None, allowed: Mapping[str, SlotDemand], contested: Mapping[str, str]
    ) -> None:
        names = {str(entry.pool): entry.name for entry in self._policies.scaling}
        statuses = {
            names[pool]: ScalingStatus(allotment.serving, _serving(report, pool), contested[pool])
            for pool, allotment in allowed.items()
            if pool in contested and pool in names
        }
        if statuses != self._statuses:
            self._statuses = statuses
            self._on_status(statuses)

    def _write(self, api: KubeApi, pool: str, live: Body, allotment: SlotDemand) -> ReplicaWrite:
        """Write one pool's number, or set the total of a pool that moves between versions. Errors are logged, and only
        those that do not pass by themselves count as contested. Blocks."""
        replicas = allotment.serving + allotment.warm
        if self._is_on_its_way(pool):
            return self._totals.request_total(pool, scaling.clamp_replicas(live, replicas))
        try:
            written = scaling.write_replicas(api, live, replicas, self._settings.conflicts)
        except _KUBE_ERRORS as error:
            self._log_trouble(f"{pool}'s number", f"{pool}: {error}")
            return ReplicaWrite(0, contested=str(error) if isinstance(error, (Conflict, Terminal)) else "")
        if written.changed:
            _log.info("%s: %d replicas, of them %d warm", pool, written.replicas, allotment.warm)
        trouble = written.contested or written.pending
        self._log_trouble(f"{pool}'s number", f"{pool}: {trouble}" if trouble else "")
        return written

    async def _send_role_orders(
        self, notifier: RoleNotifier, report: PoolReport, allowed: dict[str, SlotDemand]
    ) -> None:
        orders = [order for pool, allotment in allowed.items() for order in self._orders(report, pool, allotment)]
        troubles = await notifier.notify(orders)
        self._log_trouble("agents", "; ".join(troubles[:3]))

    def _orders(self, report: PoolReport, pool: str, allotment: SlotDemand) -> list[RoleOrder]:
        """Return the pool's role orders. A pool that moves between versions has no warm replica, so all its warm ones
        are promoted."""
        replicas = replicas_of(report, pool)
        if self._is_on_its_way(pool):
            return role_orders_by_count(replicas, len(replicas), 0)
        return role_orders_by_count(replicas, allotment.serving, allotment.warm)

    def _is_on_its_way(self, pool: str) -> bool:
        """Return True if the pool moves from one version of its base to another."""
        return self._totals.total_of(pool) is not None

    def _log_trouble(self, about: str, trouble: str) -> None:
        if trouble and self._said.get(about) != trouble:
            _log.warning("%s", trouble)
        self._said[about] = trouble


def _scaled(live: Body, replicas: int, allotment: SlotDemand, why: str) -> EventNote:
    warm = f", of them {allotment.warm} warm" if allotment.warm else ""
    regarding = Regarding.from_live(INFERENCE_SERVICE, live)
    return EventNote(regarding, "Normal", "Scaled", "Scale", f"{replicas} replicas{warm}: {why}")


def _serving(report: PoolReport | None, pool: str) -> int:
    return sum(each.phase == "ready" for each in replicas_of(report, pool)) if report is not None else 0


def _warm_of(report: PoolReport | None, pool: str) -> int:
    """Return how many replicas of the pool report that they are warm; without a report, 0."""
    return sum(each.phase == "warm" for each in replicas_of(report, pool)) if report is not None else 0


def _size(number: int | None, entry: AutoscalingEntry, warm: int) -> int | None:
    """Return what an earlier leader asked for, to judge by the cluster: within the policy, without warm replicas; None
    if the number is unknown.

    Worked example (test_new_warm_policy_removes_no_serving_replica): 10 are asked for, and the
    policy wants 4 warm ones besides. While none is warm, all 10 serve, and 4 more are asked for.
    """
    if number is None:
        return None
    return max(entry.min_replicas, min(entry.max_replicas, number - min(entry.warm, warm)))
