"""Bus from which simulated gateways lease tenant limits: a model of the quota script, one round trip away.

`functions.gateway.quota.leases` requests leases; `functions.fleet.quota_model` answers like the script.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from functions.fleet.bus import BusUnavailable
from functions.fleet.quota_leases import Group, LeaseAnswer
from functions.fleet.quota_model import QuotaModel

_ROUND_TRIP_S = 0.0005  # within a region
_US_PER_S = 1_000_000
_BORN_US = -60 * _US_PER_S
_HEARD_US = -_US_PER_S


class QuotaBus:
    """The bus of all gateways; it has run for a while when a simulation starts, and knows all gateways."""

    def __init__(self, gateways: Iterable[str]) -> None:
        self.model = QuotaModel()
        self.model.request_leases("", (), _BORN_US)
        for name in gateways:
            self.model.request_leases(name, (), _HEARD_US)


class QuotaClient:
    """Client of one gateway."""

    def __init__(self, bus: QuotaBus, clock: Callable[[], float], in_touch: Callable[[], bool]) -> None:
        self._bus = bus
        self._clock = clock
        self._in_touch = in_touch

    async def request_leases(self, gateway_id: str, groups: Sequence[Group]) -> LeaseAnswer:
        await asyncio.sleep(_ROUND_TRIP_S)
        if not self._in_touch():
            raise BusUnavailable("the gateway is cut off from the bus")
        return self._bus.model.request_leases(gateway_id, groups, int(self._clock() * _US_PER_S))

    async def close(self) -> None:
        """Do nothing: there is no connection."""
