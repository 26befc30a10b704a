"""Arithmetic of the bus's traffic (`loadtests.bus`): cost of one message times the number of messages."""

import pytest

from loadtests.bus.measure import Heard, Leases, Sent
from loadtests.bus.traffic import Costs, Fleet, loads

SENT = Sent(message_bytes=1000, sender_us=100.0, server_us=20.0, subscriber_us=5.0, in_bytes=2000.0, out_bytes=1050.0)
COSTS = Costs(
    heartbeat=SENT,
    heard=Heard(gateway_us=200.0, heard_per_s=1000.0, catch_up_s=1.0),
    leases=Leases(call_us=50.0, account_us=25.0, in_bytes=200.0, out_bytes=100.0, gateway_us=40.0),
    homes=SENT,
    homes_received_us=600.0,
    homes_each=64,
    delta=SENT,
    delta_received_us=40.0,
    ask=SENT,
)


def test_worked_example_of_a_small_fleet() -> None:
    fleet = Fleet(replicas=100, gateways=4, requests_per_s=6400.0, exceptions_ratio=0.01, accounts=10, pools=5)
    heartbeats, leases, homes, asks, deltas = loads(fleet, COSTS)
    assert heartbeats.valkey_cpu == pytest.approx(100 * (20 + 5 * 5) / 1e6)  # four gateways and the registry
    assert heartbeats.valkey_out == pytest.approx(100 * 5 * 1050)
    assert (heartbeats.gateway_bytes, heartbeats.gateway_cpu) == pytest.approx((100 * 1050, 100 * 200 / 1e6))
    assert leases.valkey_cpu == pytest.approx(4 * 4 * (10 * 25 + 50) / 1e6)  # four rounds a second
    assert leases.gateway_cpu == pytest.approx(4 * 10 * 40 / 1e6)
    assert homes.messages_per_s == pytest.approx(1.0)
    assert homes.gateway_cpu == pytest.approx(600 / 1e6)
    assert asks.messages_per_s == pytest.approx(4 * 5 / 5)
    assert deltas.valkey_cpu == pytest.approx(100 * (20 + 4 * 5) / 1e6)
