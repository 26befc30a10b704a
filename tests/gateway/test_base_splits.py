"""Rollout of a base: which requests, its adapters' included, go to replicas of which version."""

from typing import Any

import msgspec
import pytest

from functions.api.ids import ModelId, RolloutId
from functions.api.snapshot import SplitEntry
from functions.gateway.intake.models import as_control
from functions.gateway.request.request import Admitted
from tests.gateway import rig
from tests.gateway.rig import BOT_V1, DIGEST_V1, DIGEST_V2, POOL, ROLLOUT, version
from tests.gateway.test_splits import Door, sent, split_of


def versions(*splits: SplitEntry, **more: Any) -> dict[str, Any]:
    """Return the rig's sections with a second version of its base."""
    models = tuple(
        msgspec.structs.replace(
            model, versions=(*model.versions, version("v2", DIGEST_V2, POOL)), splits=splits, **more
        )
        if model.id == ModelId(POOL)
        else model
        for model in rig.snapshot().models
    )
    return {"models": models}


class BaseDoor(Door):
    """Door with a rollout of the base and none of its adapters."""

    def stage(self, stage: int, percent: int, sticky: Any = "session") -> None:
        split = SplitEntry("stable", ROLLOUT, stage, percent, "v2", sticky)
        self.catalogue = rig.catalogue(stage + 1, **versions(split))


def both(door: Door, model: str) -> dict[str, Admitted]:
    return {split_of(one).group: one for one in (door.admit(model, request_id=f"r{n}") for n in range(50))}


def test_base_request_requires_weights_of_its_version() -> None:
    groups = both(BaseDoor(), POOL)
    assert {name: (one.model.version, one.model.weights) for name, one in groups.items()} == {
        "control": ("v1", DIGEST_V1),
        "candidate": ("v2", DIGEST_V2),
    }
    assert {sent(one)["model"] for one in groups.values()} == {POOL}, "engines know the base by its pool's name"


def test_adapter_without_rollout_follows_its_base() -> None:
    """Otherwise all adapters would stay on the shrinking old replicas, or move at the end without evidence."""
    groups = both(BaseDoor(), "acme/bot")
    assert {name: one.model.weights for name, one in groups.items()} == {"control": DIGEST_V1, "candidate": DIGEST_V2}
    assert {(one.model.engine_name, one.model.digest) for one in groups.values()} == {(BOT_V1, DIGEST_V1)}
    assert {split_of(one).model for one in groups.values()} == {ModelId(POOL)}, "evidence of the base's rollout"


def test_base_session_from_before_the_rollout_stays_on_control() -> None:
    door = BaseDoor()
    door.catalogue = rig.catalogue(1, **versions())
    sessions = [f"s{number}" for number in range(20)]
    assert all(door.admit(POOL, header=each).split is None for each in sessions)
    door.stage(0, 99)
    assert {split_of(door.admit(POOL, header=each)).group for each in sessions} == {"control"}


def test_answer_names_the_version_its_replica_loaded() -> None:
    candidate = both(BaseDoor(), POOL)["candidate"].model
    assert candidate.as_loaded(DIGEST_V2) == ("v2", DIGEST_V2)
    assert candidate.as_loaded(DIGEST_V1) == ("v1", DIGEST_V1), "a replica that was taken for another"


@pytest.mark.parametrize("model", [POOL, "acme/bot"])
def test_candidate_without_replica_falls_back_to_control(model: str) -> None:
    door = BaseDoor()
    candidate = both(door, model)["candidate"]
    assert door.splits.may_fall_back(candidate.split)
    control = as_control(candidate, door.splits)
    assert (control.model.weights, split_of(control).group, split_of(control).fell_back) == (
        DIGEST_V1,
        "control",
        True,
    )


def test_adapter_in_its_own_rollout_stays_on_the_old_base() -> None:
    """One change at a time: otherwise the cause of worse answers could not be determined."""
    door = BaseDoor()
    split = SplitEntry("stable", ROLLOUT, 0, 50, "v2")
    own = SplitEntry("stable", RolloutId("ro-0000other"), 0, 50, "v2")
    models = tuple(
        msgspec.structs.replace(model, splits=(own,)) if model.id == "acme/bot" else model
        for model in versions(split)["models"]
    )
    door.catalogue = rig.catalogue(1, models=models)
    groups = both(door, "acme/bot")
    assert {(one.model.version, one.model.weights) for one in groups.values()} == {("v1", DIGEST_V1), ("v2", DIGEST_V1)}
    assert {split_of(one).model for one in groups.values()} == {ModelId("acme/bot")}


def test_version_requested_by_name_is_not_split() -> None:
    door = BaseDoor()
    asked = door.admit(f"{POOL}@v2")
    assert (asked.split, asked.model.weights) == (None, DIGEST_V2)


def test_base_of_one_version_requires_no_weights() -> None:
    assert Door().admit(POOL).model.weights is None
    assert Door().admit("acme/bot").model.weights is None
