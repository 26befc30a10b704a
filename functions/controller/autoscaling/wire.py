"""Pool reports and desired sizes as they travel between registry and controller.

Errors are those of `functions.controller.snapshot.registry_client`: RegistryUnavailable (try again), RegistryRefused
(it will not).
"""

from collections.abc import Mapping

import httpx
import msgspec

from functions.controller.autoscaling.scaler import Wanted
from functions.controller.snapshot.registry_client import RegistryUnavailable, RegistryWire
from functions.fleet.pool_board import REPORT_MAX_BYTES, REPORT_PATH, DesiredPool, DesiredPools, PoolReport

_TIMEOUT = httpx.Timeout(3.0)  # asked for each second; what comes later is of no use


class PoolsWire:
    def __init__(self, registry: RegistryWire) -> None:
        self._registry = registry

    async def report(self) -> PoolReport:
        response = await self._registry.send("GET", REPORT_PATH, timeout=_TIMEOUT)
        if len(response.content) > REPORT_MAX_BYTES:
            raise RegistryUnavailable(f"{REPORT_PATH} answers with {len(response.content)} bytes")
        try:
            return msgspec.json.decode(response.content, type=PoolReport)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RegistryUnavailable(f"{REPORT_PATH} does not answer as a registry does: {error}") from error

    async def tell(self, wanted: Mapping[str, Wanted]) -> None:
        pools = tuple(DesiredPool(pool, each.replicas, each.cause) for pool, each in sorted(wanted.items()))
        await self._registry.send(
            "PUT", REPORT_PATH, content=msgspec.json.encode(DesiredPools(pools)), timeout=_TIMEOUT
        )
