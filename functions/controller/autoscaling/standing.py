"""Serving and standby roles of a pool's replicas, and the agents that must be notified of theirs."""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

import httpx

from functions.controller.autoscaling.roster import Roster
from functions.controller.autoscaling.signals import replicas_of
from functions.fleet.pool_board import PoolReport, ReplicaReport

# Notifier of agents: one short request each, to the port where gateways and peers reach it.
#
# An agent that cannot be reached or refuses is asked again with the next pass, since its beats still say otherwise.


TELL_TIMEOUT_S = 5.0  # a sleeping engine takes a while to wake
AT_ONCE = 32

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Order:
    """One replica's standing from now on, and where its agent listens."""

    replica_id: str
    host: str
    port: int
    standby: bool


class Teller:
    """Owned by one event loop."""

    def __init__(self, client: httpx.AsyncClient, token: str) -> None:
        self._client = client
        self._headers = {"authorization": f"Bearer {token}"}
        self._places = asyncio.Semaphore(AT_ONCE)

    async def tell(self, orders: Iterable[Order]) -> tuple[str, ...]:
        """All at once; returns why some were not heard, in words."""
        answers = await asyncio.gather(*(self._tell(order) for order in orders))
        return tuple(answer for answer in answers if answer)

    async def _tell(self, order: Order) -> str:
        url = f"http://{order.host}:{order.port}/standing"
        try:
            async with self._places:
                answer = await self._client.post(
                    url, json={"standby": order.standby}, headers=self._headers, timeout=TELL_TIMEOUT_S
                )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return f"{order.replica_id}: {url}: {str(error) or type(error).__name__}"
        if answer.status_code != 200:
            return f"{order.replica_id}: {url} answered {answer.status_code}: {answer.text[:200]}"
        _log.info("%s is told: %s", order.replica_id, "warm" if order.standby else "serve")
        return ""


_MAX_DIGITS = 6


def orders_for(report: PoolReport, pool: str, roster: Roster) -> list[Order]:
    """For those whose beats say something else than the roster."""
    orders = []
    for replica in replicas_of(report, pool):
        number = number_of(replica)
        if number is None or number >= roster.count or not replica.peer_port:
            continue
        standby = number in roster.standby
        if replica.phase == ("ready" if standby else "warm"):
            orders.append(_order(replica, standby=standby))
    return orders


def number_of(replica: ReplicaReport) -> int | None:
    """Of `pool-3`, 3; None where the id is not made like that."""
    text = replica.replica_id.removeprefix(f"{replica.pool}-")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


def orders_for_counts(replicas: Iterable[ReplicaReport], serving: int, warm: int) -> list[Order]:
    """Where replicas have no numbers: so many of those that are loaded are to serve, then so many to be warm.

    Fewer serve than should: the first warm ones by name are promoted. More do: the last ones by name become warm, as
    many as there should be; the rest goes on serving until the cluster ends it.
    Worked example (test_worked_example_of_counts): a, b, c serve and none is warm; 2 and 1 are wanted: c becomes warm.
    """
    known = sorted((each for each in replicas if each.peer_port), key=lambda each: each.replica_id)
    ready = [each for each in known if each.phase == "ready"]
    loaded = [each for each in known if each.phase == "warm"]
    if len(ready) < serving:
        return [_order(each, standby=False) for each in loaded[: serving - len(ready)]]
    too_many = min(len(ready) - serving, max(0, warm - len(loaded)))
    return [_order(each, standby=True) for each in ready[len(ready) - too_many :]]


def _order(replica: ReplicaReport, *, standby: bool) -> Order:
    return Order(replica.replica_id, replica.host, replica.peer_port, standby)
