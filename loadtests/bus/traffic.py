"""Arithmetic of a large fleet's traffic: what was measured of one message, times how many there are.

    at Valkey     messages/s x (the message + subscribers x what each adds)
    at a gateway  messages/s that come x what one costs there

What is assumed, beside the numbers of replicas and gateways, stands in `Fleet`: it is the fleet's, not the code's.
"""

from dataclasses import dataclass

from functions.decisions.quota.lease import ROUND_S
from functions.fleet.heartbeat import HEARTBEAT_INTERVAL_S
from functions.fleet.prefix_updates import ASK_INTERVAL_S
from loadtests.bus.measure import Heard, Leases, Sent

_HOMES_PER_S = 2.0  # batches of one gateway, where there is something to tell
_REGISTRY = 1  # it listens to heartbeats as a gateway does


@dataclass(frozen=True, slots=True)
class Fleet:
    replicas: int = 5000
    gateways: int = 40
    requests_per_s: float = 100_000.0
    exceptions_ratio: float = 0.01  # of the requests: conversations that go elsewhere than every gateway assumes
    accounts: int = 100  # in use at each gateway at a time
    delta_blocks: int = 125  # that came since the delta before, and as many that went
    deltas_per_s: float = 1.0  # of a replica, where a pool's policy asks for its events
    pools: int = 10


@dataclass(frozen=True, slots=True)
class Costs:
    """Measured."""

    heartbeat: Sent
    heard: Heard
    leases: Leases
    homes: Sent
    homes_received_us: float  # a batch
    homes_each: int  # conversations of a batch
    delta: Sent
    delta_received_us: float
    ask: Sent


@dataclass(frozen=True, slots=True)
class Load:
    """Of one kind of traffic; bytes and CPU seconds a second."""

    what: str
    messages_per_s: float
    valkey_in: float
    valkey_out: float
    valkey_cpu: float
    gateway_bytes: float  # that come to one
    gateway_cpu: float


def loads(fleet: Fleet, costs: Costs) -> list[Load]:
    return [_heartbeats(fleet, costs), _leases(fleet, costs), _homes(fleet, costs), *_prefixes(fleet, costs)]


def _heartbeats(fleet: Fleet, costs: Costs) -> Load:
    per_s = fleet.replicas / HEARTBEAT_INTERVAL_S
    return _told("heartbeats", per_s, costs.heartbeat, fleet.gateways + _REGISTRY, costs.heard.gateway_us)


def _leases(fleet: Fleet, costs: Costs) -> Load:
    per_gateway, leases = fleet.accounts / ROUND_S, costs.leases
    accounts = per_gateway * fleet.gateways
    return Load(
        f"leases, {fleet.accounts} accounts",
        fleet.gateways / ROUND_S,
        accounts * leases.in_bytes,
        accounts * leases.out_bytes,
        (accounts * leases.account_us + fleet.gateways / ROUND_S * leases.call_us) / 1e6,
        per_gateway * leases.out_bytes,
        per_gateway * leases.gateway_us / 1e6,
    )


def _homes(fleet: Fleet, costs: Costs) -> Load:
    """Batches of the size that was measured: what a conversation costs is nearly the same in any."""
    per_s = fleet.requests_per_s * fleet.exceptions_ratio / costs.homes_each
    return _told("session homes", per_s, costs.homes, fleet.gateways, costs.homes_received_us)


def _prefixes(fleet: Fleet, costs: Costs) -> list[Load]:
    asks = fleet.gateways * fleet.pools / ASK_INTERVAL_S
    deltas = fleet.replicas * fleet.deltas_per_s
    return [
        _told("prefix asks", asks, costs.ask, fleet.replicas, 0.0),
        _told("prefix deltas", deltas, costs.delta, fleet.gateways, costs.delta_received_us),
    ]


def _told(what: str, per_s: float, sent: Sent, subscribers: int, received_us: float) -> Load:
    return Load(
        what,
        per_s,
        per_s * sent.in_bytes,
        per_s * subscribers * sent.out_bytes,
        per_s * (sent.server_us + subscribers * sent.subscriber_us) / 1e6,
        per_s * sent.out_bytes if received_us else 0.0,
        per_s * received_us / 1e6,
    )
