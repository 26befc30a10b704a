"""The switches themselves; what they do on the wire is in test_fault_wire."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from functions.engines.sim.faults import FaultBox, Faults, Malformed
from functions.engines.sim.lifecycle import IllegalMoveError, Lifecycle, Phase


def test_fault_changes_merge_and_null_resets() -> None:
    box = FaultBox(Faults(), Random(0))
    box.merge({"error_status": 503, "retry_after_s": 2})
    box.merge({"malformed": "crlf", "error_status": None})
    assert box.now == Faults(malformed=Malformed.CRLF, retry_after_s=2)


@pytest.mark.parametrize("wrong", [{"no_such": 1}, {"ratio": 2}, {"slow_factor": 0}, {"malformed": "x"}])
def test_a_wrong_change_changes_nothing(wrong: dict[str, object]) -> None:
    box = FaultBox(Faults(hang=True), Random(0))
    with pytest.raises(ValidationError):
        box.merge(wrong)
    assert box.now == Faults(hang=True)


@settings(deadline=None)
@given(st.floats(0, 1), st.integers(0, 100))
def test_the_share_of_requests_hit_is_the_ratio_and_repeats_with_the_seed(ratio: float, seed: int) -> None:
    def hits() -> list[bool]:
        box = FaultBox(Faults(ratio=ratio, error_status=500), Random(seed))
        return [box.draw_for_request().error_status == 500 for _ in range(400)]

    assert hits() == hits()
    assert abs(sum(hits()) / 400 - ratio) < 0.15


def test_one_adapter_may_be_worse_than_its_neighbours() -> None:
    box = FaultBox(Faults(model="bot@sha256:2", error_status=500, delay_s=0.1), Random(0))
    assert box.draw_for_request("acme/bot@sha256:2f").error_status == 500
    assert box.draw_for_request("acme/bot@sha256:1f") == box.draw_for_request("base") == Faults()


def test_lifecycle_state_never_goes_back() -> None:
    life = Lifecycle()
    life.move(Phase.SERVING)
    life.move(Phase.DRAINING)
    with pytest.raises(IllegalMoveError):
        life.move(Phase.SERVING)
    assert life.phase is Phase.DRAINING
