"""Delivery of usage: sums to the spool each second, the spool to the registry every ten.

A process that is killed loses what ended since the sums were written last: a second of requests, where the disk takes
them. A registry that is away is waited for; the two loops are apart, so that nothing else waits with it. A gateway that
drains delivers all it has, and what that leaves is there for its successor.

Where the disk takes nothing, sums stay in memory, and are lost with the process: `shoal_usage_unspooled_requests` says
how many.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator

import httpx
import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from functions.fleet.role_credentials import Bearer, now
from functions.fleet.usage_report import USAGE_PATH, encode
from functions.gateway.usage.spool import Pending, UsageSpool
from functions.gateway.usage.sums import UsageSums

_log = logging.getLogger(__name__)
SPOOL_EVERY_S = 1.0
DELIVER_EVERY_S = 10.0
LAST_DELIVERY_S = 10.0
_TIMEOUT = httpx.Timeout(10.0, connect=2.0)
_REFUSED = (400, 413, 422)


class NotDelivered(Exception):
    """The registry does not take usage now; it is kept, and told later."""


class UsageDelivery:
    """`keep` and `deliver_often` run for ever on the loop; `deliver` blocks, in a thread."""

    def __init__(
        self,
        sums: UsageSums,
        spool: UsageSpool,
        post: Callable[[bytes], int],
        gateway_id: str,
        clock: Callable[[], float],
    ) -> None:
        """`post` sends a report and gives the answer's status; NotDelivered where there was none."""
        self.reports = {"delivered": 0, "refused": 0, "failed": 0}
        self.waiting_since_s: float | None = None  # monotonic; since when something waits that could not be told
        self.spool = spool
        self.sums = sums
        self._post = post
        self._gateway_id = gateway_id
        self.clock = clock
        self._failing = False

    async def keep(self) -> None:
        while True:
            await asyncio.sleep(SPOOL_EVERY_S)
            await self.keep_once()

    async def keep_once(self) -> None:
        """What the sums have goes to the disk; where it cannot, back to them."""
        rows = self.sums.take()
        if not rows:
            return
        try:
            await asyncio.to_thread(self.spool.write, rows)
        except OSError as error:
            self.sums.put_back(rows)
            if not self._failing:
                _log.error("usage cannot be kept on disk, and is only in memory until it can: %s", error)
            self._failing = True
            return
        self._failing = False

    async def deliver_often(self) -> None:
        """Raises NotDelivered."""
        while True:
            await asyncio.sleep(DELIVER_EVERY_S)
            await asyncio.to_thread(self.deliver)

    def deliver(self) -> None:
        """All that waits, and what processes that are gone have left; NotDelivered."""
        try:
            for pending in self.spool.pending():
                self._send(pending)
            for left in self.spool.abandoned():
                for pending in left:
                    self._send(pending)
        except (NotDelivered, OSError) as error:
            self.reports["failed"] += 1
            self.waiting_since_s = self.waiting_since_s if self.waiting_since_s is not None else self.clock()
            raise NotDelivered(str(error)) from error
        self.waiting_since_s = None

    async def close(self) -> None:
        """The last words of a process that ends."""
        await self.keep_once()
        try:
            async with asyncio.timeout(LAST_DELIVERY_S):
                await asyncio.to_thread(self.deliver)
        except (NotDelivered, TimeoutError) as error:
            _log.warning("usage stays in %s for this gateway's successor: %s", self.spool.directory, error)
        await asyncio.to_thread(self.spool.close)

    def _send(self, pending: Pending) -> None:
        try:
            status = self._post(encode(pending.report(self._gateway_id)))
        except msgspec.DecodeError as error:
            self._refuse(pending, f"it cannot be read: {error}")
            return
        if status in _REFUSED:
            self._refuse(pending, f"the registry answers {status}")
        elif status >= httpx.codes.MULTIPLE_CHOICES:
            raise NotDelivered(f"the registry answers {status}")
        else:
            pending.done()
            self.reports["delivered"] += 1

    def _refuse(self, pending: Pending, why: str) -> None:
        _log.error("usage in %s is not counted, and is kept as .refused: %s", pending.path, why)
        self.reports["refused"] += 1
        pending.refused()


def registry_post(client: httpx.Client, bearer: Bearer) -> Callable[[bytes], int]:
    """To the registry whose address and trust the client has."""

    def post(report: bytes) -> int:
        headers = {"authorization": f"Bearer {now(bearer)}", "content-type": "application/json"}
        try:
            return client.post(USAGE_PATH, content=report, headers=headers, timeout=_TIMEOUT).status_code
        except httpx.HTTPError as error:
            raise NotDelivered(f"no answer from the registry: {error or type(error).__name__}") from error

    return post


class UsageCollector(Collector):
    """No tenant and no model is named."""

    def __init__(self, delivery: UsageDelivery) -> None:
        self._delivery = delivery

    def collect(self) -> Iterator[Metric]:
        delivery = self._delivery
        unspooled = GaugeMetricFamily("shoal_usage_unspooled_requests", "Lost if this gateway is killed now")
        unspooled.add_metric([], delivery.sums.requests)
        waiting = GaugeMetricFamily("shoal_usage_waiting_bytes", "On disk, not counted by the registry yet")
        waiting.add_metric([], delivery.spool.waiting_bytes())
        since_s = delivery.waiting_since_s
        late = GaugeMetricFamily("shoal_usage_undelivered_seconds", "For how long the registry has taken none")
        late.add_metric([], delivery.clock() - since_s if since_s is not None else 0.0)
        reports = CounterMetricFamily("shoal_usage_reports", "To the registry", labels=["outcome"])
        for outcome, count in delivery.reports.items():
            reports.add_metric([outcome], count)
        lost = CounterMetricFamily("shoal_usage_lost_requests", "In no bill: more waited than may")
        lost.add_metric([], delivery.sums.lost_requests_total)
        yield from (unspooled, waiting, late, reports, lost)
