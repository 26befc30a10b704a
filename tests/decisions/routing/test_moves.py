"""Moves of conversations: noise does not move a turn away from its cache, and an overloaded home is left."""

import pytest

from functions.api.ids import ReplicaId
from functions.decisions.health.engine_rates import EngineRates
from functions.decisions.routing.choice import ReplicaView, RouteRequest
from functions.decisions.routing.request import Moved
from tests.decisions.routing.test_routing import load_of, replica, request_with, routed

HOME = ReplicaId("home")
MEASURED = {"service_ms": 400.0, "prefill_ms_per_token": 0.2}
HOME_AND_B = replica("home", **MEASURED), replica("b", **MEASURED)
FEW_AHEAD, MANY_AHEAD = load_of({"home": 3}, {"home": 2_500}), load_of({"home": 4}, {"home": 20_000})


def turn(cached: int, tokens: int = 1500) -> RouteRequest:
    return request_with(prompt_tokens=tokens, session_replica=HOME, cached_tokens={HOME: cached} if cached else {})


def newcomer(name: str = "new") -> ReplicaView:
    """Return a replica whose agent has just started and measured nothing."""
    rates = EngineRates()
    return replica(name, service_ms=rates.service_ms, prefill_ms_per_token=rates.prefill_ms_per_token)


def test_momentary_queue_moves_no_conversation() -> None:
    """The prologue's example: four turns once left their home for the instant in which three prompts waited."""
    home = replica("home", running=1, waiting=3, **MEASURED)
    found = routed(turn(1400), home, newcomer())
    assert (found.replica.id, found.reason, found.moved) == ("home", "session", None)


def test_a_home_with_much_ahead_is_left() -> None:
    """The second half of the prologue's example."""
    found = routed(turn(1400), replica("home", running=1, waiting=3, **MEASURED), newcomer(), load=MANY_AHEAD)
    assert found.replica.id == "new" and found.moved is not None and found.moved.state == "slower"


def test_unmeasured_replica_counts_as_fast_as_its_pool() -> None:
    """The default rate of an unmeasured replica is a third of what this pool takes."""
    home = replica("home", running=2, service_ms=1500.0, prefill_ms_per_token=1.5)
    load, request = load_of({"home": 2}, {"home": 2_000}), turn(1_000, 4_000)
    assert routed(request, home, newcomer(), newcomer("newer"), load=load).replica.id == "home"
    fast = [replica(name, service_ms=1500.0, prefill_ms_per_token=0.5) for name in ("new", "newer")]
    assert routed(request, home, *fast, load=load).replica.id != "home"


def test_home_over_its_share_is_left_whatever_it_has_cached() -> None:
    found = routed(turn(1400), replica("home", running=40, **MEASURED), newcomer(), replica("b", **MEASURED))
    assert found.replica.id != "home" and found.moved is not None and found.moved.state == "full"


def test_refusing_home_is_left() -> None:
    """The penalty follows a 503 or silence."""
    views = replica("home", running=1, **MEASURED), replica("b", **MEASURED)
    found = routed(turn(1400), *views, penalties_ms={HOME: 5000.0})
    assert found.replica.id == "b" and found.moved is not None and found.moved.predicted_ms > 5000.0


def test_waiting_prompts_delay_a_turn_at_a_full_cache() -> None:
    """At a full cache prompts wait until others end, and so does the turn."""
    views = [replica("home", running=1, waiting=3, kv_usage_ratio=used, **MEASURED) for used in (0.5, 0.96)]
    assert [routed(turn(700), view, newcomer()).replica.id for view in views] == ["home", "new"]


def test_full_pool_keeps_no_conversation_at_home() -> None:
    views = [replica(name, kv_usage_ratio=1.0, **MEASURED) for name in ("home", "b")]
    assert routed(turn(1400), *views, load=FEW_AHEAD).replica.id == "b"


def test_move_that_recomputes_little_is_allowed() -> None:
    """400 tokens are 80 ms: with so little gain, turns of short prompts would wait longer than requests without a
    home.
    """
    found = routed(turn(400), *HOME_AND_B, load=load_of({"home": 3}, {"home": 1_100}))
    assert found.replica.id == "b" and found.moved is not None


@pytest.mark.parametrize(("cached", "where"), [(0, "b"), (1400, "home")])
def test_home_without_cached_tokens_has_no_bonus(cached: int, where: str) -> None:
    assert (
        routed(turn(cached), replica("home", **MEASURED), replica("b", **MEASURED), load=FEW_AHEAD).replica.id == where
    )


def test_move_explains_its_comparison() -> None:
    home = replica("home", running=1, waiting=3, **MEASURED)
    found = routed(turn(1400), home, newcomer(), load=MANY_AHEAD)
    assert isinstance(found.moved, Moved)
    said = found.explain()
    assert (said["home"], said["home_was"]) == ("home", "slower")
    assert said["home_predicted_ms"] == pytest.approx(20_000 * 0.2 + 4 * 20 + 100 * 0.2)
    assert said["home_score_ms"] == pytest.approx(found.moved.score_ms, abs=0.1)
    assert said["score_ms"] == pytest.approx(found.moved.chosen_score_ms, abs=0.1)
    assert found.moved.score_ms > found.moved.chosen_score_ms
    out = routed(turn(1400), replica("home", **MEASURED), newcomer(), excluded=[HOME]).explain()
    assert (out["home"], out["home_was"]) == ("home", "out")
    assert "home" not in routed(turn(1400), replica("home", **MEASURED), newcomer()).explain()
