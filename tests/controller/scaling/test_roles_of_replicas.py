"""Role notices go to the replicas whose heartbeats report another role than the desired one."""

from functions.controller.autoscaling.allocation import (
    Allocation,
    RoleOrder,
    number_of,
    role_orders,
    role_orders_by_count,
)
from tests.controller.scaling.builders import POOL, replica, report


def test_who_agrees_is_left_alone() -> None:
    assert role_orders(report(replica(0), replica(1, "warm")), POOL, Allocation(2, frozenset({1}))) == []


def test_a_promotion_and_its_reverse() -> None:
    told = role_orders(report(replica(0), replica(1, "warm")), POOL, Allocation(2, frozenset({0})))
    assert told == [RoleOrder("llama-8b-0", "127.0.0.1", 8500, True), RoleOrder("llama-8b-1", "127.0.0.1", 8501, False)]


def test_what_starts_drains_or_is_one_too_many_is_left_alone() -> None:
    heartbeats = report(replica(0, "starting"), replica(1, "draining"), replica(2, "warm"))
    assert role_orders(heartbeats, POOL, Allocation(2)) == []


def test_an_id_of_another_make_is_nobodys_number() -> None:
    assert number_of(replica(3)) == 3
    odd = report(replica(0, pool=f"{POOL}-x"))
    assert role_orders(odd, POOL, Allocation(1, frozenset({0}))) == []


def test_worked_example_of_counts() -> None:
    heartbeats = [replica(0), replica(1), replica(2)]
    assert [(order.replica_id, order.standby) for order in role_orders_by_count(heartbeats, 2, 1)] == [
        ("llama-8b-2", True)
    ]


def test_as_many_are_promoted_as_are_lacking() -> None:
    heartbeats = [replica(0), replica(1, "warm"), replica(2, "warm"), replica(3, "warm")]
    told = role_orders_by_count(heartbeats, 3, 1)
    assert [(order.replica_id, order.standby) for order in told] == [("llama-8b-1", False), ("llama-8b-2", False)]


def test_too_many_serve_on_where_enough_are_warm() -> None:
    assert role_orders_by_count([replica(0), replica(1), replica(2, "warm")], 1, 1) == []


def test_enough_is_enough() -> None:
    assert role_orders_by_count([replica(0), replica(1, "warm")], 1, 1) == []
