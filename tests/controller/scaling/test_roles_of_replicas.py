"""Role notices go to the replicas whose heartbeats report another role than the desired one."""

from functions.controller.autoscaling.allocation import (
    Allocation,
    RoleOrder,
    number_of,
    role_orders,
    role_orders_by_count,
)
from tests.controller.scaling.builders import POOL, replica, report


def test_replica_with_the_desired_role_gets_no_order() -> None:
    assert role_orders(report(replica(0), replica(1, "warm")), POOL, Allocation(2, frozenset({1}))) == []


def test_role_orders_promote_and_demote() -> None:
    told = role_orders(report(replica(0), replica(1, "warm")), POOL, Allocation(2, frozenset({0})))
    assert told == [RoleOrder("llama-8b-0", "127.0.0.1", 8500, True), RoleOrder("llama-8b-1", "127.0.0.1", 8501, False)]


def test_starting_draining_and_surplus_replicas_get_no_order() -> None:
    heartbeats = report(replica(0, "starting"), replica(1, "draining"), replica(2, "warm"))
    assert role_orders(heartbeats, POOL, Allocation(2)) == []


def test_foreign_replica_id_has_no_number() -> None:
    assert number_of(replica(3)) == 3
    odd = report(replica(0, pool=f"{POOL}-x"))
    assert role_orders(odd, POOL, Allocation(1, frozenset({0}))) == []


def test_worked_example_of_counts() -> None:
    heartbeats = [replica(0), replica(1), replica(2)]
    assert [(order.replica_id, order.standby) for order in role_orders_by_count(heartbeats, 2, 1)] == [
        ("llama-8b-2", True)
    ]


def test_missing_serving_replicas_are_promoted() -> None:
    heartbeats = [replica(0), replica(1, "warm"), replica(2, "warm"), replica(3, "warm")]
    told = role_orders_by_count(heartbeats, 3, 1)
    assert [(order.replica_id, order.standby) for order in told] == [("llama-8b-1", False), ("llama-8b-2", False)]


def test_surplus_replicas_keep_serving_if_enough_are_warm() -> None:
    assert role_orders_by_count([replica(0), replica(1), replica(2, "warm")], 1, 1) == []


def test_satisfied_counts_give_no_orders() -> None:
    assert role_orders_by_count([replica(0), replica(1, "warm")], 1, 1) == []
