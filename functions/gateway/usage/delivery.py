"""Delivery of usage: sums are written to the spool every second, and the spool is sent to the registry every ten.

A killed process loses the requests since the last write: one second, if the disk accepts writes. Delivery waits for
an unreachable registry in a loop of its own, so that nothing else waits. A draining gateway delivers all it has; its
successor delivers what remains.

If the disk rejects writes, sums stay in memory and are lost with the process: `shoal_usage_unspooled_requests` is
their number.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator

import httpx
import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from functions.fleet.role_credentials import Bearer, current_secret
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
    """The registry does not accept usage now; the usage stays in the spool and is sent later."""


class UsageDelivery:
    """Writes and delivers usage. `write_often` and `deliver_often` loop on the event loop; `deliver` blocks, in a
    thread."""

    def __init__(
        self,
        sums: UsageSums,
        spool: UsageSpool,
        post: Callable[[bytes], int],
        gateway_id: str,
        clock: Callable[[], float],
    ) -> None:
        """`post` sends a report and returns the answer's status; it raises NotDelivered without an answer."""
        self.reports = {"delivered": 0, "refused": 0, "failed": 0}
        self.waiting_since_s: float | None = None  # monotonic; time of the first failed delivery since the last success
        self.spool = spool
        self.sums = sums
        self._post = post
        self._gateway_id = gateway_id
        self.clock = clock
        self._failing = False

    async def write_often(self) -> None:
        while True:
            await asyncio.sleep(SPOOL_EVERY_S)
            await self.write_once()

    async def write_once(self) -> None:
        """Write a report's rows of the sums to disk; if that fails, return them to memory and log it once."""
        rows = self.sums.pop_rows()
        if not rows:
            return
        try:
            await asyncio.to_thread(self.spool.write, rows)
        except OSError as error:
            self.sums.restore_rows(rows)
            if not self._failing:
                _log.error("usage cannot be written to disk, and stays in memory until it can: %s", error)
            self._failing = True
            return
        self._failing = False

    async def deliver_often(self) -> None:
        while True:
            await asyncio.sleep(DELIVER_EVERY_S)
            await asyncio.to_thread(self.deliver)

    def deliver(self) -> None:
        """Deliver all waiting files to the registry, and those of processes that have ended; raises NotDelivered.

        After a failure the rest waits for the next call.
        """
        try:
            # complete files first, then the open one, because a process that ends has no later chance
            for _ in range(2):
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
        """Write and deliver the last usage before the process ends, and close the spool.

        What is not delivered within LAST_DELIVERY_S stays on disk for a successor.
        """
        await self.write_once()
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
            pending.delete()
            self.reports["delivered"] += 1

    def _refuse(self, pending: Pending, why: str) -> None:
        _log.error("usage in %s is not counted, and is kept as .refused: %s", pending.path, why)
        self.reports["refused"] += 1
        pending.set_aside()


def registry_post(client: httpx.Client, bearer: Bearer) -> Callable[[bytes], int]:
    """Return a function that posts a report to the registry and returns the status; it raises NotDelivered.

    The client has the registry's address and trust.
    """

    def post(report: bytes) -> int:
        headers = {"authorization": f"Bearer {current_secret(bearer)}", "content-type": "application/json"}
        try:
            return client.post(USAGE_PATH, content=report, headers=headers, timeout=_TIMEOUT).status_code
        except httpx.HTTPError as error:
            raise NotDelivered(f"no answer from the registry: {error or type(error).__name__}") from error

    return post


class UsageCollector(Collector):
    """Metrics of the delivery, without tenants and models."""

    def __init__(self, delivery: UsageDelivery) -> None:
        self._delivery = delivery

    def collect(self) -> Iterator[Metric]:
        delivery = self._delivery
        unspooled = GaugeMetricFamily(
            "shoal_usage_unspooled_requests",
            "Requests whose usage is in memory only, and lost if this gateway is killed now",
        )
        unspooled.add_metric([], delivery.sums.requests)
        waiting = GaugeMetricFamily(
            "shoal_usage_waiting_bytes", "Bytes of usage on disk that the registry has not counted yet"
        )
        waiting.add_metric([], delivery.spool.waiting_bytes())
        since_s = delivery.waiting_since_s
        late = GaugeMetricFamily(
            "shoal_usage_undelivered_seconds",
            "Time since the first failed delivery of usage to the registry, 0 after a success",
        )
        late.add_metric([], delivery.clock() - since_s if since_s is not None else 0.0)
        reports = CounterMetricFamily(
            "shoal_usage_reports", "Reports of usage to the registry, by outcome", labels=["outcome"]
        )
        for outcome, count in delivery.reports.items():
            reports.add_metric([outcome], count)
        lost = CounterMetricFamily(
            "shoal_usage_lost_requests", "Requests whose usage was dropped because too many rows waited"
        )
        lost.add_metric([], delivery.sums.lost_requests_total)
        yield from (unspooled, waiting, late, reports, lost)
