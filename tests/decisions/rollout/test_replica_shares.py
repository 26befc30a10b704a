"""Replicas per base version: how many of each at each step of a rollout, and their share of requests."""

from math import ceil

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.api import snapshot as snapshots
from functions.api.ids import EngineName, ModelId
from functions.api.snapshot import ModelEntry, Snapshot, SplitEntry, VersionEntry
from functions.decisions.rollout.evaluation import Residency, evaluate
from functions.decisions.rollout.events import AnyEvent, Paused, RolledBack, StagePassed, VersionLoaded
from functions.decisions.rollout.evidence import TrialEvidence
from functions.decisions.rollout.lifecycle import Rollout
from functions.decisions.rollout.replica_shares import (
    VersionShares,
    can_serve_share,
    candidate_targets,
    next_percent,
    share_percent,
    wanted_shares,
    with_shares,
)
from tests.decisions.rollout.rollouts import CAREFUL, POOL, Traffic, digest, evidence, rollout

BASE = ModelId(POOL)
STAGES = msgspec.structs.replace(CAREFUL, stages=CAREFUL.stages[1:])  # 10, 50 and 100 %


def base(*names: str, split: Rollout | None = None, **channels: str) -> ModelEntry:
    versions = tuple(VersionEntry(name, digest(name), EngineName(POOL), f"pvc://shoal-models/{name}") for name in names)
    splits = (SplitEntry("stable", split.id, split.trial, split.percent, split.to_version),) if split else ()
    return ModelEntry(BASE, POOL, "base", versions, channels, splits=splits)


def of_base(*events: AnyEvent) -> Rollout:
    return rollout(*events, model=BASE, policy=STAGES)


def wanted(row: Rollout, replicas: int = 4, surge: int = 1, *, widens: bool = False) -> VersionShares | None:
    published = base("v1", "v2", split=row if row.percent else None, stable="v1")
    return wanted_shares(published, [row], {row.id} if widens else (), replicas, surge)


def test_worked_example_of_four_replicas() -> None:
    first = of_base(VersionLoaded())
    assert wanted(first) == VersionShares("v1", {"v2": 1}, is_moving=True)
    assert wanted(first, widens=True) == VersionShares("v1", {"v2": 2}, is_moving=True)
    assert not can_serve_share(next_percent(first), 1, 4)
    assert share_percent(first, 2, 3, widens=True) == 40 and can_serve_share(next_percent(first), 2, 3)
    second = of_base(VersionLoaded(), StagePassed())
    assert wanted(second) == VersionShares("v1", {"v2": 2}, is_moving=True)
    assert wanted(second, widens=True) == VersionShares("v1", {"v2": 4}, is_moving=True)
    assert share_percent(second, 3, 1, widens=True) == 75 and can_serve_share(next_percent(second), 4, 1)
    assert not can_serve_share(next_percent(second), 3, 2)


def test_two_replicas_end_with_two() -> None:
    """During the change 1 replica of each version is ready while the other old one changes; if it died, new sessions
    would have no replica.
    """
    policy = msgspec.structs.replace(CAREFUL, stages=(CAREFUL.stages[1], CAREFUL.stages[-1]))  # 10 and 100 %
    row = rollout(VersionLoaded(), model=BASE, policy=policy)
    good = evidence((200, Traffic()), (2000, Traffic()), 70.0)
    shares = wanted(row, 2, 1, widens=True)
    assert shares == VersionShares("v1", {"v2": 2}, is_moving=True)
    (aim,) = candidate_targets(base("v1", "v2"), [row], shares).values()
    found = [evaluate(row, good, Residency(3, n, m, aim=aim), 70.0) for n, m in ((2, 1), (1, 1), (1, 2))]
    assert [(each.kind, each.widens) for each in found] == [("hold", True), ("hold", True), ("advance", False)]


def test_two_replicas_without_a_surge_end_with_one_candidate() -> None:
    policy = msgspec.structs.replace(CAREFUL, stages=(CAREFUL.stages[1], CAREFUL.stages[-1]))
    row = rollout(VersionLoaded(), model=BASE, policy=policy)
    shares = wanted(row, 2, 0, widens=True)
    assert shares is not None and candidate_targets(base("v1", "v2"), [row], shares) == {row.id: 1}
    good = evidence((200, Traffic()), (2000, Traffic()), 70.0)
    assert evaluate(row, good, Residency(2, 1, 1, aim=1), 70.0).kind == "advance"


def test_loading_rollout_has_the_replicas_of_its_first_stage() -> None:
    assert wanted(of_base()) == VersionShares("v1", {"v2": 1}, is_moving=True)


def test_one_replica_without_a_surge_stays_the_old_one() -> None:
    """There is no slot for a second version, and the pool must not shrink for it."""
    assert wanted(of_base(), replicas=1, surge=0) == VersionShares("v1", {}, is_moving=True)
    assert wanted(of_base(), replicas=1, surge=1) == VersionShares("v1", {"v2": 1}, is_moving=True)


def test_rolled_back_or_paused_candidate_has_no_replica() -> None:
    assert wanted_shares(base("v1", "v2", stable="v1"), [], (), 4, 1) == VersionShares("v1", {})
    assert wanted(of_base(Paused("ada"))) == VersionShares("v1", {}, is_moving=True)


def test_snapshot_with_an_ended_rollout_decides_nothing() -> None:
    """The rollout has completed and the channel still points at the old version; acting on it would end the new
    version's replicas.
    """
    row = of_base(VersionLoaded())
    published = base("v1", "v2", split=row, stable="v1")
    assert wanted_shares(published, [], (), 4, 1) is None
    assert wanted_shares(published, [of_base(VersionLoaded(), RolledBack("ada"))], (), 4, 1) == VersionShares("v1", {})


def test_version_of_another_channel_has_a_replica() -> None:
    assert wanted_shares(base("v1", "v2", stable="v1", canary="v2"), [], (), 4, 0) == VersionShares("v1", {"v2": 1})


def test_version_without_stages_has_half_of_the_replicas() -> None:
    found = wanted_shares(base("v1", "v2", stable="v1", incoming="v2"), [], (), 5, 1)
    assert found == VersionShares("v1", {"v2": 3}, is_moving=True)


def test_computed_share_replaces_the_stage_percent() -> None:
    row = of_base(VersionLoaded())
    published = base("v1", "v2", split=row, stable="v1")
    snapshot = Snapshot(snapshots.SCHEMA_VERSION, 1, "r", 0.0, (), (), (published,), ())
    assert with_shares(snapshot, {row.id: 33}).models[0].splits[0].percent == 33
    assert with_shares(snapshot, {}) is snapshot


@given(
    replicas=st.integers(1, 40),
    surge=st.integers(0, 1),
    stage=st.integers(0, 1),
    widens=st.booleans(),
)
def test_candidates_respect_the_surge_and_one_control_stays(
    replicas: int, surge: int, stage: int, widens: bool
) -> None:
    found = wanted(of_base(VersionLoaded(), *[StagePassed()] * stage), replicas, surge, widens=widens)
    assert found is not None
    assert found.others_total <= replicas + surge - 1
    if replicas + surge > 1:
        assert found.others_total >= min(replicas + surge - 1, ceil(replicas * (10, 50)[stage] / 100))


@given(candidates=st.integers(0, 40), controls=st.integers(0, 40), stage=st.integers(0, 1))
def test_share_is_between_this_stage_and_the_next(candidates: int, controls: int, stage: int) -> None:
    row = of_base(VersionLoaded(), *[StagePassed()] * stage)
    share = share_percent(row, candidates, controls, widens=True)
    assert row.percent <= share <= min(99, next_percent(row))
    assert share_percent(row, candidates, controls, widens=False) == row.percent


def test_base_rollout_begins_once_its_first_stage_has_replicas() -> None:
    """An adapter needs half of all replicas; for a base that would be half of the pool for a stage of one percent."""
    assert evaluate(of_base(), TrialEvidence(), Residency(5, 4, 1), 1.0).kind == "loaded"
    assert evaluate(of_base(), TrialEvidence(), Residency(4, 4, 0), 1.0).kind == "hold"


def test_adapter_that_does_not_load_on_the_new_base_holds_the_rollout_with_a_reason() -> None:
    """The base has replicas and good evidence, but it would refuse a share of the requests of those adapters."""
    where = Residency(5, 4, 1, refusing=1, refusal="acme/bot: its rank 64 is over the engine's 16")
    loading = evaluate(of_base(), TrialEvidence(), where, 1.0)
    assert (loading.kind, loading.reason.endswith(where.refusal)) == ("hold", True)
    assert evaluate(of_base(), TrialEvidence(), where, 10_000.0).kind == "load_failed", (
        "at its deadline it is taken back"
    )
    good = evidence((200, Traffic()), (2000, Traffic()), heard_unix_s=70.0)
    running = evaluate(of_base(VersionLoaded()), good, where, 70.0)
    assert (running.kind, running.widens) == ("hold", False)
    assert running.reason.endswith(f"an adapter does not load on v2: {where.refusal}")


@pytest.mark.parametrize(("candidates", "kind"), [(1, "hold"), (2, "advance")])
def test_passed_stage_waits_for_replicas_of_the_next(candidates: int, kind: str) -> None:
    row = of_base(VersionLoaded())
    good = evidence((200, Traffic()), (2000, Traffic()), 70.0)
    verdict = evaluate(row, good, Residency(5, 5 - candidates, candidates), 70.0)
    assert (verdict.kind, verdict.widens) == (kind, kind == "hold")


def lost(without_s: float) -> Residency:
    return Residency(4, 4, 0, without_s=without_s)


def test_base_candidate_without_replicas_is_held_and_rolled_back_at_the_deadline() -> None:
    row, good = of_base(VersionLoaded()), evidence((100, Traffic()), (5000, Traffic()), 69.0)
    held = evaluate(row, good, lost(599.0), 70.0)
    assert held.kind == "hold" and not held.widens
    assert held.reason.endswith("no replica has v2: v1 serves its share until one is back")
    halted = evaluate(row, good, lost(600.0), 70.0)
    assert halted.kind == "halt" and halted.reason.endswith("no replica has had v2 for 10m 0s")
    assert evaluate(of_base(VersionLoaded(), Paused("ada")), good, lost(600.0), 70.0).kind == "halt", (
        "the guard is on duty"
    )


def test_pool_without_ready_replicas_does_not_count_against_a_version() -> None:
    row, good = of_base(VersionLoaded()), evidence((100, Traffic()), (5000, Traffic()), 69.0)
    assert "no replica has" not in evaluate(row, good, Residency(), 70.0).reason
    adapter = rollout(VersionLoaded(), policy=STAGES)
    assert evaluate(adapter, good, lost(600.0), 70.0).kind == "advance", "an adapter's evidence has it"
