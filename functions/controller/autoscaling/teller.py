"""Tells agents which of them serve: one short request each, to the port where gateways and peers reach it.

An agent that cannot be reached or refuses is asked again with the next pass, since its beats still say otherwise.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

import httpx

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
