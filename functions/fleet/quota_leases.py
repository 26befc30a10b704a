"""Leases of limits from the bus: what gateways request, what is granted, and the script that decides.

One script call carries all that a gateway has to ask in a round; it runs on the server by the server's clock, so that
gateways need not agree on the time. It keeps one level for each limit of each account, which grants raise and time
lowers: the same bucket as `functions.decisions.quota.token_bucket`. Amounts travel in millionths of a token or second.

    a round's ask     each limit by itself, at most half of what is left, in whole requests; below zero: given back
    an urgent ask     several limits of one request, perhaps of two accounts: all or nothing, and when to come back

A server that has just begun knows of nothing that was spent. For a second it says so (`learning`), and is told:
what gateways spent is a debt of theirs, which their next round pays, and places are said anew with each ask.

Neighbours: `functions.decisions.quota.lease` says how much to ask for; `functions.gateway.quota.leases` does so.
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
REGIONS_KEY, USED_KEY = "shoal:quota:regions", "shoal:quota:used"  # of `quota_regions`
_KEYS = (GATEWAYS_KEY, BORN_KEY, REGIONS_KEY, USED_KEY)
_CONNECT_S = 1.0
_Given = tuple[int, list[int], list[int]]


class RateRequest(NamedTuple):
    """Of one limit; amounts in millionths."""

    dimension: int
    limit: int  # a period; whole, as the policy has it
    burst_micro: int
    period_s: int
    wanted_micro: int  # below zero: given back
    request_micro: int  # what one request takes: a round's ask is granted in whole ones, or in full


class LeaseRequest(NamedTuple):
    """Of one account."""

    account: str
    places_limit: int  # NO_LIMIT: places are not counted
    places_held: int
    places_wanted: int  # below zero: given back
    rates: tuple[RateRequest, ...]


class Group(NamedTuple):
    """Requests that are granted together; `all_or_none`: in full or not at all."""

    all_or_none: bool
    requests: tuple[LeaseRequest, ...]


class Grant(NamedTuple):
    """Of one account, in the order of its request."""

    places: int  # held from now on
    granted_micro: tuple[int, ...]
    left_micro: tuple[int, ...]  # for everybody; negative: debt


class Granted(NamedTuple):
    ok: bool
    wait_us: int  # where it is not: when it might be
    grants: tuple[Grant, ...]


class LeaseAnswer(NamedTuple):
    gateways: int  # heard of in the last 10 s
    learning: bool
    granted: tuple[Granted, ...]


class QuotaBroker(Protocol):
    async def ask(self, gateway_id: str, groups: Sequence[Group]) -> LeaseAnswer:
        """Tell that this gateway lives, and what it wants; BusUnavailable where nobody answers."""

    async def close(self) -> None: ...


class ValkeyQuotaBroker:
    """Over connections of its own: an ask must not wait behind a page of pins."""

    def __init__(self, url: str, *, password: valkey_client.Password | None = None, timeout_s: float = 1.0) -> None:
        self._client = valkey_client.client(
            url, password=password, socket_timeout=timeout_s, socket_connect_timeout=_CONNECT_S
        )
        self._script = self._client.register_script(SCRIPT)

    async def ask(self, gateway_id: str, groups: Sequence[Group]) -> LeaseAnswer:
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
    """What the script gave, which is whole numbers in lists."""
    try:
        gateways, learning, granted = msgspec.convert(said, tuple[int, int, list[tuple[int, int, list[_Given]]]])
    except msgspec.ValidationError as error:
        raise BusUnavailable(f"the quota script gave no answer: {error}") from error
    return LeaseAnswer(
        gateways,
        bool(learning),
        tuple(
            Granted(
                bool(ok), wait_us, tuple(Grant(places, tuple(amounts), tuple(left)) for places, amounts, left in given)
            )
            for ok, wait_us, given in granted
        ),
    )
