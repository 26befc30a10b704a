"""Arithmetic of a large fleet's traffic: the measured cost of one message times the number of messages.

    at Valkey     messages/s x (cost of the message + subscribers x cost of each)
    at a gateway  messages/s received x cost of one there

`Fleet` has the assumptions about the fleet.
"""

from dataclasses import dataclass

from functions.decisions.quota.lease import ROUND_S
from functions.fleet.heartbeat import HEARTBEAT_INTERVAL_S
from functions.fleet.prefix_updates import ASK_INTERVAL_S
from loadtests.bus.measure import Heard, Leases, Sent

_HOMES_PER_S = 2.0  # batches of one gateway that has new homes to publish
_REGISTRY = 1  # the registry subscribes to heartbeats as a gateway does


@dataclass(frozen=True, slots=True)
class Fleet:
    replicas: int = 5000
    gateways: int = 40
    requests_per_s: float = 100_000.0
    exceptions_ratio: float = 0.01  # share of requests whose session has another home than every gateway assumes
    accounts: int = 100  # in use concurrently at each gateway
    delta_blocks: int = 125  # new blocks since the previous delta; as many are removed
    deltas_per_s: float = 1.0  # per replica, if the pool's policy requests KV events
    pools: int = 10


@dataclass(frozen=True, slots=True)
class Costs:
    heartbeat: Sent
    heard: Heard
    leases: Leases
    homes: Sent
    homes_received_us: float  # per batch
    homes_each: int  # conversations per batch
    delta: Sent
    delta_received_us: float
    ask: Sent


@dataclass(frozen=True, slots=True)
class Load:
    """Load of one kind of traffic, in bytes and CPU seconds per second."""

    what: str
    messages_per_s: float
    valkey_in: float
    valkey_out: float
    valkey_cpu: float
    gateway_bytes: float  # received by one gateway
    gateway_cpu: float


def loads(fleet: Fleet, costs: Costs) -> list[Load]:
    return [_heartbeats(fleet, costs), _leases(fleet, costs), _homes(fleet, costs), *_prefixes(fleet, costs)]


def _heartbeats(fleet: Fleet, costs: Costs) -> Load:
    per_s = fleet.replicas / HEARTBEAT_INTERVAL_S
    return _published_load("heartbeats", per_s, costs.heartbeat, fleet.gateways + _REGISTRY, costs.heard.gateway_us)


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
    """Return the load of session homes in batches of the measured size; another size costs nearly the same."""
    per_s = fleet.requests_per_s * fleet.exceptions_ratio / costs.homes_each
    return _published_load("session homes", per_s, costs.homes, fleet.gateways, costs.homes_received_us)


def _prefixes(fleet: Fleet, costs: Costs) -> list[Load]:
    asks = fleet.gateways * fleet.pools / ASK_INTERVAL_S
    deltas = fleet.replicas * fleet.deltas_per_s
    return [
        _published_load("prefix asks", asks, costs.ask, fleet.replicas, 0.0),
        _published_load("prefix deltas", deltas, costs.delta, fleet.gateways, costs.delta_received_us),
    ]


def _published_load(what: str, per_s: float, sent: Sent, subscribers: int, received_us: float) -> Load:
    return Load(
        what,
        per_s,
        per_s * sent.in_bytes,
        per_s * subscribers * sent.out_bytes,
        per_s * (sent.server_us + subscribers * sent.subscriber_us) / 1e6,
        per_s * sent.out_bytes if received_us else 0.0,
        per_s * received_us / 1e6,
    )
