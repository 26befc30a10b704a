"""Reconcile loop of one term: observe, act, wait. Level-triggered; events and operator orders only wake it.

However much changes during a pass, one more pass follows and reads everything. A failed pass is repeated after the
delay of its result (`outcome.next_pass_delay_s`); any change ends the wait.

Laws: no pass while suspended, except on request; LeadershipLost ends the loop immediately.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.errors import Conflict, Gone, KindMissing, LeadershipLost, Retryable, Terminal
from functions.controller.kubernetes.inventory import RECORD_NAME, RecordStore
from functions.controller.kubernetes.objects import CONFIG_MAP, mapping_at
from functions.controller.kubernetes.outcome import PassResult, ReconcileIntervals, next_pass_delay_s
from functions.controller.kubernetes.run.elector import TermGuard
from functions.controller.kubernetes.run.metrics import ControllerMetrics

# Operator orders: annotations on the controller's record (the ConfigMap `shoal-controller`).
#
#     kubectl -n shoal annotate configmap shoal-controller shoal.dev/suspend=true           # and =false, or remove it
#     kubectl -n shoal annotate configmap shoal-controller --overwrite \
#         shoal.dev/reconcile-requested-at="$(date -Is)"                                    # without waiting
#
# While suspended, nothing declared is published and nothing is written, not even drift correction; what runs stays.
# A rollback still happens and is published. A request is handled once: its text is then
# `lastHandledReconcileAt` in the record.


SUSPEND = "shoal.dev/suspend"
REQUESTED_AT = "shoal.dev/reconcile-requested-at"
HANDLED_AT = "lastHandledReconcileAt"
_REQUEST_MAX_CHARS = 128


@dataclass(frozen=True, slots=True)
class OperatorOrders:
    suspended: bool = False
    requested_at: str = ""
    handled_at: str = ""

    @property
    def is_reconcile_requested(self) -> bool:
        return bool(self.requested_at) and self.requested_at != self.handled_at


def read_orders(api: KubeApi, namespace: str) -> OperatorOrders:
    """Return the orders in the record; without a record there are none. Blocks."""
    found = api.get(CONFIG_MAP, namespace, RECORD_NAME)
    if found is None:
        return OperatorOrders()
    annotations = mapping_at(found, "metadata", "annotations")
    return OperatorOrders(
        suspended=str(annotations.get(SUSPEND, "")).lower() == "true",
        requested_at=str(annotations.get(REQUESTED_AT, ""))[:_REQUEST_MAX_CHARS],
        handled_at=str(mapping_at(found, "data").get(HANDLED_AT, "")),
    )


def request_reconcile(api: KubeApi, namespace: str, at: str) -> None:
    """Annotate the record to request a reconcile; do nothing if suspended. `at` is the time of the request. Blocks."""
    if not read_orders(api, namespace).suspended:
        api.merge_patch(CONFIG_MAP, namespace, RECORD_NAME, {"metadata": {"annotations": {REQUESTED_AT: at}}})


def mark_handled(api: KubeApi, namespace: str, orders: OperatorOrders) -> None:
    """Record the request as handled. Blocks; raises Stale if the record was written in between."""
    store = RecordStore(api, namespace)
    store.write(replace(store.read(), last_handled_reconcile_at=orders.requested_at))


REPEAT_LOG_S = 600.0

_log = logging.getLogger(__name__)

Reconcile = Callable[[TermGuard, KubeApi], Awaitable[PassResult]]


async def _nothing() -> None:
    """Do nothing, for passes that fetch nothing."""


class Loop:
    """Reconcile loop, owned by one event loop."""

    def __init__(
        self,
        reconcile: Reconcile,
        namespace: str,
        metrics: ControllerMetrics,
        *,
        pace: ReconcileIntervals,
        settle_s: float,
        control_poll_s: float,
        rng: random.Random | None = None,
        on_suspended: Callable[[], None] = lambda: None,
        on_request: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        """`on_suspended` is called when nothing more may be written until a resumption or a request. `on_request`
        ends before the requested pass, which reads what it fetched."""
        self.last = PassResult("waiting", "no reconcile yet")
        self.suspended = False
        self._reconcile = reconcile
        self._namespace = namespace
        self._metrics = metrics
        self._pace = pace
        self._settle_s = settle_s
        self._control_poll_s = control_poll_s
        self._on_suspended = on_suspended
        self._on_request = on_request
        self._rng = rng or random.Random()  # noqa: S311 - spreads retries; guards nothing
        self._changed = asyncio.Event()
        self._repeats = 0
        self._said: tuple[str, frozenset[str]] | None = None  # last logged result
        self._said_s = 0.0

    def wake(self) -> None:
        """End the wait for the next pass: the desired or the live state has changed."""
        self._changed.set()

    async def lead(self, guard: TermGuard, api: KubeApi) -> None:
        """Reconcile for the length of a term, except while suspended and without a request; ends with
        LeadershipLost."""
        self._repeats = 0
        orders = await self._first_orders(guard, api)
        while True:
            guard.check()
            self._changed.clear()
            self.suspended = orders.suspended
            wait_s: float | None = None
            if not orders.suspended or orders.is_reconcile_requested:
                if orders.is_reconcile_requested:
                    await self._on_request()
                wait_s = await self._pass(guard, api)
                await self._acknowledge(api, orders)
            else:
                self._on_suspended()
            orders = await self._wait(guard, api, wait_s, orders)

    async def _pass(self, guard: TermGuard, api: KubeApi) -> float:
        began_s = time.monotonic()
        result = await self._attempt(guard, api)
        self._metrics.observe_pass(result.kind, time.monotonic() - began_s)
        self._repeats = self._repeats + 1 if result.kind == self.last.kind else 1
        self._log_result(result, time.monotonic())
        self.last = result
        return next_pass_delay_s(result, self._repeats, self._pace, self._rng.random())

    def _log_result(self, result: PassResult, now_s: float) -> None:
        """Log a result that says something new, and a lasting problem again every REPEAT_LOG_S. The order of its
        parts and the epoch of unchanged content do not count as new."""
        said = (
            result.kind,
            frozenset(part for part in result.message.split("; ") if not part.startswith("unchanged:")),
        )
        is_due = result.kind != "done" and now_s - self._said_s >= REPEAT_LOG_S
        if said != self._said or is_due:
            self._said, self._said_s = said, now_s
            if result.message:
                _log.info("%s: %s", result.kind, result.message)

    async def _attempt(self, guard: TermGuard, api: KubeApi) -> PassResult:
        """Run a pass and return its result; turn errors except LeadershipLost into results and count them. An
        unexpected error is logged with its traceback and retried."""
        try:
            return await self._reconcile(guard, api)
        except LeadershipLost:
            raise
        except Conflict as error:
            self._metrics.count_error("conflict")
            return PassResult("contested", str(error))
        except (Terminal, KindMissing) as error:
            self._metrics.count_error("terminal" if isinstance(error, Terminal) else "kind_missing")
            return PassResult("stalled" if isinstance(error, Terminal) else "contested", str(error))
        except (Retryable, Gone) as error:
            self._metrics.count_error("retryable")
            return PassResult("passing", str(error), getattr(error, "after_s", None))
        except Exception as error:
            self._metrics.count_error("unforeseen")
            _log.exception("unexpected error in a reconcile")
            return PassResult("passing", f"{type(error).__name__}: {error}")

    async def _wait(
        self, guard: TermGuard, api: KubeApi, wait_s: float | None, before: OperatorOrders
    ) -> OperatorOrders:
        """Wait for the deadline (`wait_s` None: no deadline), a change while not suspended, or another order. Return
        the current orders."""
        deadline_s = time.monotonic() + wait_s if wait_s is not None else float("inf")
        while True:
            guard.check()
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                return await self._orders(api, before)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, self._control_poll_s)):
                    await self._changed.wait()
            orders = await self._orders(api, before)
            if self._changed.is_set() and not orders.suspended:
                await asyncio.sleep(self._settle_s)
                return orders
            if orders.is_reconcile_requested or orders.suspended != before.suspended:
                return orders
            self._changed.clear()

    async def _first_orders(self, guard: TermGuard, api: KubeApi) -> OperatorOrders:
        """Return the orders, waiting until they can be read: they may have suspended an earlier leader."""
        while True:
            guard.check()
            try:
                return await asyncio.to_thread(read_orders, api, self._namespace)
            except (Retryable, Terminal, KindMissing, Gone) as error:
                message = f"no reconcile before the orders in the record can be read: {error}"
                if message != self.last.message:
                    _log.warning("%s", message)
                self.last = PassResult("waiting", message)
            await asyncio.sleep(self._control_poll_s)

    async def _orders(self, api: KubeApi, before: OperatorOrders) -> OperatorOrders:
        """Return the current orders, or `before` if they cannot be read."""
        try:
            return await asyncio.to_thread(read_orders, api, self._namespace)
        except (Retryable, Terminal, KindMissing, Gone) as error:
            _log.debug("the orders cannot be read: %s", error)
            return before

    async def _acknowledge(self, api: KubeApi, orders: OperatorOrders) -> None:
        if not orders.is_reconcile_requested:
            return
        try:
            await asyncio.to_thread(mark_handled, api, self._namespace, orders)
        except (Retryable, Conflict, Terminal, KindMissing) as error:
            _log.warning("the request %s was handled and cannot be marked so: %s", orders.requested_at, error)
