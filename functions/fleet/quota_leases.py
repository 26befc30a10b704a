"""Leases of limits from the bus: what gateways request, what is granted, and the client of the script that decides.

One script call carries all requests of a gateway in a round. It runs on the server by the server's clock, so gateways
need not agree on the time. The script stores one level for each limit of each account. Grants raise it and time lowers
it: the same bucket as `functions.decisions.quota.token_bucket`. Amounts are in millionths of a token or second.

    a round's request     each limit by itself, at most half of what is left, in whole requests; negative: returned
    an urgent request     several limits of one request, perhaps of two accounts: all or none, and when to retry

A new server does not know what was spent. For one second it reports this (`learning`). What gateways spent meanwhile
is their debt, which their next round pays, and every request repeats the places that its gateway holds.

Neighbours: `functions.decisions.quota.lease` decides how much to request; `functions.gateway.quota.leases` sends it.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec
from valkey.exceptions import ValkeyError

from functions.fleet import valkey_client
from functions.fleet.bus import BusUnavailable
from functions.fleet.quota_script import SCRIPT

MICRO = 1_000_000
NO_LIMIT = -1
GATEWAYS_KEY, BORN_KEY, ACCOUNT_KEY = "shoal:quota:gateways", "shoal:quota:born", "shoal:quota:account:"
REGIONS_KEY, USED_KEY = "shoal:quota:regions", "shoal:quota:used"  # keys of `quota_regions`
_KEYS = (GATEWAYS_KEY, BORN_KEY, REGIONS_KEY, USED_KEY)
_CONNECT_S = 1.0
_Given = tuple[int, list[int], list[int]]


class RateRequest(NamedTuple):
    """Request for one limit; amounts in millionths."""

    dimension: int
    limit: int  # per period; a whole number, as in the policy
    burst_micro: int
    period_s: int
    wanted_micro: int  # negative: returned
    request_micro: int  # amount of one request: a round's request is granted in multiples of it, or in full


class LeaseRequest(NamedTuple):
    """Request for one account."""

    account: str
    places_limit: int  # NO_LIMIT: places are not counted
    places_held: int
    places_wanted: int  # negative: returned
    rates: tuple[RateRequest, ...]


class Group(NamedTuple):
    """Requests that are granted together; `all_or_none`: in full or not at all."""

    all_or_none: bool
    requests: tuple[LeaseRequest, ...]


class Grant(NamedTuple):
    """Grant for one account, in the order of its request."""

    places: int  # places held from now on
    granted_micro: tuple[int, ...]
    left_micro: tuple[int, ...]  # left for all gateways; negative: debt


class GrantedGroup(NamedTuple):
    ok: bool
    wait_us: int  # if not ok: time until it may be granted
    grants: tuple[Grant, ...]


class LeaseAnswer(NamedTuple):
    gateways: int  # gateways seen in the last 10 s
    learning: bool
    granted: tuple[GrantedGroup, ...]


class QuotaBroker(Protocol):
    async def request_leases(self, gateway_id: str, groups: Sequence[Group]) -> LeaseAnswer:
        """Report that this gateway is alive, and request leases or return them; BusUnavailable if the bus does not
        answer."""

    async def close(self) -> None: ...


class ValkeyQuotaBroker:
    """Leases from Valkey, over connections of its own: a request must not wait behind a page of pins."""

    def __init__(self, url: str, *, password: valkey_client.Password | None = None, timeout_s: float = 1.0) -> None:
        self._client = valkey_client.client(
            url, password=password, socket_timeout=timeout_s, socket_connect_timeout=_CONNECT_S
        )
        self._script = self._client.register_script(SCRIPT)

    async def request_leases(self, gateway_id: str, groups: Sequence[Group]) -> LeaseAnswer:
        keys = [*_KEYS, *dict.fromkeys(ACCOUNT_KEY + request.account for group in groups for request in group.requests)]
        try:
            return _answer(await self._script(keys=keys, args=[_encoded(gateway_id, groups)]))
        except (ValkeyError, OSError) as error:
            raise BusUnavailable(str(error)) from error

    async def close(self) -> None:
        await self._client.aclose()


def _encoded(gateway_id: str, groups: Sequence[Group]) -> bytes:
    asked = [
        [
            int(group.all_or_none),
            [[ACCOUNT_KEY + request.account, *request[1:4], list(request.rates)] for request in group.requests],
        ]
        for group in groups
    ]
    return msgspec.json.encode({"g": gateway_id, "q": asked})


def _answer(said: object) -> LeaseAnswer:
    """Parse the script's answer, which is whole numbers in lists; BusUnavailable if it is not."""
    try:
        gateways, learning, granted = msgspec.convert(said, tuple[int, int, list[tuple[int, int, list[_Given]]]])
    except msgspec.ValidationError as error:
        raise BusUnavailable(f"the quota script gave no answer: {error}") from error
    return LeaseAnswer(
        gateways,
        bool(learning),
        tuple(
            GrantedGroup(
                bool(ok), wait_us, tuple(Grant(places, tuple(amounts), tuple(left)) for places, amounts, left in given)
            )
            for ok, wait_us, given in granted
        ),
    )
