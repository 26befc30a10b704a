"""Clients of the autoscaler: reports from the registry, desired sizes and verdicts to it, roles to replicas' agents.

Registry errors are those of `functions.controller.snapshot.registry_client`: RegistryUnavailable (try again) and
RegistryRefused (do not). If an agent cannot be reached or rejects its role, the next pass sends the role again,
because its heartbeats still differ.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping

import httpx
import msgspec

from functions.api.netloc import netloc
from functions.controller.autoscaling.allocation import RoleOrder
from functions.controller.autoscaling.scaler import DesiredSize
from functions.controller.snapshot.registry_client import RegistryClient, RegistryUnavailable
from functions.fleet.agent_credentials import agent_credential
from functions.fleet.pool_board import REPORT_MAX_BYTES, REPORT_PATH, DesiredPool, DesiredPools, PoolReport
from functions.fleet.role_credentials import Bearer, current_secret
from functions.fleet.verdicts import VERDICTS_PATH, Verdicts

NOTIFY_TIMEOUT_S = 5.0  # waking a sleeping engine takes a while
AT_ONCE = 32

_log = logging.getLogger(__name__)


def agents_http() -> httpx.AsyncClient:
    """Return a client that opens a connection for each call, because agents are short-lived."""
    return httpx.AsyncClient(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))


class RoleNotifier:
    """Sender of roles to replicas: one short request each, to the port where gateways and peers reach the agent. Owned
    by one event loop."""

    def __init__(self, client: httpx.AsyncClient, secret: Bearer, former: Bearer = "") -> None:
        """Credentials are derived from `secret`; agents of version 0.1 accept credentials derived from `former`."""
        self._client = client
        self._secret, self._former = secret, former
        self._places = asyncio.Semaphore(AT_ONCE)

    async def notify(self, orders: Iterable[RoleOrder]) -> tuple[str, ...]:
        """Send all orders concurrently; return one message for each agent that could not be notified."""
        answers = await asyncio.gather(*(self._notify(order) for order in orders))
        return tuple(answer for answer in answers if answer)

    async def _notify(self, order: RoleOrder) -> str:
        url = f"http://{netloc(order.host, order.port)}/standing"
        try:
            async with self._places:
                answer = await self._post(url, order, current_secret(self._secret))
                if answer.status_code == 401 and (former := current_secret(self._former)):
                    answer = await self._post(url, order, former)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return f"{order.replica_id}: {url}: {str(error) or type(error).__name__}"
        if answer.status_code != 200:
            return f"{order.replica_id}: {url} answered {answer.status_code}: {answer.text[:200]}"
        _log.info("%s: role sent: %s", order.replica_id, "warm" if order.standby else "serve")
        return ""

    async def _post(self, url: str, order: RoleOrder, secret: str) -> httpx.Response:
        headers = {"authorization": f"Bearer {agent_credential(secret, order.host, order.port)}"}
        return await self._client.post(url, json={"standby": order.standby}, headers=headers, timeout=NOTIFY_TIMEOUT_S)


_TIMEOUT = httpx.Timeout(3.0)  # the report is requested each second; a later answer is of no use


class PoolsClient:
    def __init__(self, registry: RegistryClient) -> None:
        self._registry = registry

    async def report(self) -> PoolReport:
        response = await self._registry.send("GET", REPORT_PATH, timeout=_TIMEOUT)
        if len(response.content) > REPORT_MAX_BYTES:
            raise RegistryUnavailable(f"{REPORT_PATH} answered with {len(response.content)} bytes")
        try:
            return msgspec.json.decode(response.content, type=PoolReport)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RegistryUnavailable(f"{REPORT_PATH} does not answer as a registry does: {error}") from error

    async def put_verdicts(self, verdicts: Verdicts) -> None:
        await self._registry.send("PUT", VERDICTS_PATH, content=msgspec.json.encode(verdicts), timeout=_TIMEOUT)

    async def put_desired(self, wanted: Mapping[str, DesiredSize]) -> None:
        pools = tuple(DesiredPool(pool, each.replicas, each.cause) for pool, each in sorted(wanted.items()))
        await self._registry.send(
            "PUT", REPORT_PATH, content=msgspec.json.encode(DesiredPools(pools)), timeout=_TIMEOUT
        )
