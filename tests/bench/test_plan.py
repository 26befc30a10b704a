"""`loadtests.bench`: the plan of a run, before any process is started."""

import json
from pathlib import Path

import pytest

from loadtests.bench.contenders import CONTENDERS
from loadtests.bench.parts import PARTS, body
from loadtests.bench.peers import REQUIREMENTS, pin_of
from loadtests.bench.run import Plan, by_process


def plan(rounds: int) -> Plan:
    return Plan(list(PARTS), list(CONTENDERS), rounds, streams=100, replicas=2, seed=7)


def test_every_round_has_every_contender_once_in_an_order_of_its_own() -> None:
    turns = plan(rounds=4).turns()
    orders = [[name for number, name in turns if number == round_] for round_ in range(4)]
    assert sorted(orders[0]) == sorted(CONTENDERS)
    assert all(sorted(order) == sorted(set(CONTENDERS) - {"litellm"}) for order in orders[1:])
    assert len({tuple(order) for order in orders}) > 1


def test_the_same_seed_makes_the_same_run() -> None:
    assert plan(rounds=3).turns() == plan(rounds=3).turns()


def test_fresh_parts_share_no_process() -> None:
    processes = by_process(list(PARTS.values()))
    assert [len(parts) for parts in processes] == [1, 1, 1, len(PARTS) - 3]
    assert not any(part.fresh for part in processes[-1])


@pytest.mark.parametrize("size_bytes", [1024, 8 * 1024, 64 * 1024, 200 * 1024])
def test_bodies_have_the_named_size_and_differ(size_bytes: int) -> None:
    bodies = {body(size_bytes, variant) for variant in range(4)}
    assert len(bodies) == 4
    for encoded in bodies:
        assert abs(len(encoded) - size_bytes) <= size_bytes * 0.05
        assert json.loads(encoded)["model"] == "acme/bench"


def test_every_peer_is_pinned() -> None:
    for name in REQUIREMENTS:
        assert pin_of(name).startswith(f"{name}==")


def test_the_peers_environments_are_not_in_the_tree() -> None:
    assert "/.bench/" in Path(".gitignore").read_text().splitlines()
