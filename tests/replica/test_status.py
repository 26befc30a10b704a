"""Status of an agent: precedence of phases, and reasons for not being ready."""

from dataclasses import replace

import pytest

from functions.api.ids import EngineName
from functions.replica.status import STUCK_AFTER_S, Adapters, EngineLoad
from tests.replica.statuses import Clock, make_status


@pytest.mark.parametrize(
    ("engine", "draining", "told"),
    [
        ("ready", False, "ready"),
        ("ready", True, "draining"),
        ("starting", False, "starting"),
        ("starting", True, "draining"),
        ("hung", False, "hung"),
        ("hung", True, "hung"),
        ("dead", True, "dead"),
    ],
)
def test_phase_precedence(engine: str, draining: bool, told: str) -> None:
    assert make_status(engine, draining=draining).phase()[0] == told


def test_draining_says_how_many_are_left() -> None:
    status = make_status(draining=True, load=EngineLoad(running=2, waiting=1))
    assert status.phase() == ("draining", "draining, 3 requests left")


def test_stopped_health_loop_is_hung() -> None:
    clock = Clock()
    status = make_status(clock=clock)
    clock.now_s += STUCK_AFTER_S
    assert status.phase()[0] == "ready"
    clock.now_s += 1
    assert status.phase() == ("hung", "the agent's own loop has been stuck for 6 s")


@pytest.mark.parametrize(
    ("adapters", "missing"),
    [
        (Adapters(known=True), ""),
        (Adapters(known=True, reason="acme/bot: corrupt"), ""),  # one broken artifact must not delay readiness
        (Adapters(known=False), "no snapshot yet"),
        (Adapters(known=True, loading=(EngineName("acme/bot@sha256:1"),)), "loading acme/bot"),
    ],
)
def test_what_holds_readiness_back(adapters: Adapters, missing: str) -> None:
    found = make_status(adapters=adapters).not_ready()
    assert found.startswith(missing)
    assert bool(found) == bool(missing)


def test_confirmed_epoch_is_the_applied_snapshot() -> None:
    status = make_status()
    status.confirm_epoch(12)
    assert status.snapshot_epoch == 12


@pytest.mark.parametrize("phase", ["starting", "hung", "dead"])
def test_no_engine_no_readiness(phase: str) -> None:
    assert make_status(phase).not_ready() == f"{phase}: it is {phase}"


def test_a_broken_adapter_is_the_reason_of_a_ready_replica() -> None:
    status = make_status()
    status.adapters = replace(status.adapters, reason="acme/bot: corrupt")
    assert status.phase() == ("ready", "acme/bot: corrupt")
