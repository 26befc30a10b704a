"""Life of a rollout: the transition table, and invariants."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from functions.api.snapshot import RolloutEntry, StageEntry
from functions.decisions.rollout.events import (
    AnyEvent,
    Breached,
    LoadFailed,
    Paused,
    Promoted,
    Resumed,
    RolledBack,
    StagePassed,
    Superseded,
    VersionLoaded,
    Withdrawn,
)
from functions.decisions.rollout.lifecycle import (
    EVENTS,
    MAX_ATTEMPTS,
    TABLE,
    IllegalTransition,
    Rollout,
    id_of,
    new_rollout,
    rollout_id,
    transition,
)
from tests.decisions.rollout.rollouts import AT_ONCE, CAREFUL, rollout, running, spec

ME = "ada"
ALL: dict[type[AnyEvent], AnyEvent] = {
    VersionLoaded: VersionLoaded(),
    StagePassed: StagePassed(),
    Breached: Breached("5% against 2%"),
    LoadFailed: LoadFailed("wrong rank"),
    Paused: Paused(ME),
    Resumed: Resumed(ME),
    Promoted: Promoted(ME),
    RolledBack: RolledBack(ME, "customers complain"),
    Superseded: Superseded("ro-00000000"),
    Withdrawn: Withdrawn("v1 again"),
}
FRESH = {
    "loading": rollout(),
    "running": running(),
    "paused": rollout(VersionLoaded(), Paused(ME)),
    "completed": rollout(VersionLoaded(), Promoted(ME)),
    "rolled_back": rollout(VersionLoaded(), Breached("bad")),
    "superseded": rollout(Superseded()),
}
NO = "not allowed"
TABLE_OF_THIS_PAGE: dict[str, dict[type[AnyEvent], str]] = {
    "loading": {
        VersionLoaded: "running", StagePassed: NO, Breached: NO, LoadFailed: "rolled_back", Paused: "paused",
        Resumed: NO, Promoted: NO, RolledBack: "rolled_back", Superseded: "superseded", Withdrawn: "rolled_back",
    },
    "running": {
        VersionLoaded: NO, StagePassed: "running", Breached: "rolled_back", LoadFailed: NO, Paused: "paused",
        Resumed: NO, Promoted: "completed", RolledBack: "rolled_back", Superseded: "superseded",
        Withdrawn: "rolled_back",
    },
    "paused": {
        VersionLoaded: NO, StagePassed: NO, Breached: "rolled_back", LoadFailed: NO, Paused: NO, Resumed: "running",
        Promoted: "completed", RolledBack: "rolled_back", Superseded: "superseded", Withdrawn: "rolled_back",
    },
    "rolled_back": dict.fromkeys(EVENTS, NO) | {Resumed: "loading", Superseded: "superseded"},
    "completed": dict.fromkeys(EVENTS, NO),
    "superseded": dict.fromkeys(EVENTS, NO),
}  # fmt: skip


def test_table_covers_every_state_and_event() -> None:
    assert set(TABLE) == {(state, event) for state in FRESH for event in EVENTS}
    assert set(ALL) == set(EVENTS)


@pytest.mark.parametrize(("state", "event"), [(state, event) for state in FRESH for event in EVENTS])
def test_the_table(state: str, event: type[AnyEvent]) -> None:
    before, expected = FRESH[state], TABLE_OF_THIS_PAGE[state][event]
    assert before.state == state
    if expected == NO:
        with pytest.raises(IllegalTransition, match=r"\w+"):
            transition(before, ALL[event], 99.0)
        return
    after = transition(before, ALL[event], 99.0)
    assert after.state == expected
    assert after.lock_version == before.lock_version + 1
    assert (after.id, after.created_unix_s, after.policy) == (before.id, before.created_unix_s, before.policy)


def test_a_rollout_passes_its_stages_and_completes() -> None:
    steps = [rollout(VersionLoaded(), *[StagePassed()] * passed) for passed in range(4)]
    assert [step.percent for step in steps] == [1, 10, 50, 100]
    assert [step.state for step in steps] == ["running"] * 3 + ["completed"]
    assert rollout().percent == 0


def test_a_policy_of_one_stage_completes_when_it_is_loaded() -> None:
    assert rollout(VersionLoaded(), policy=AT_ONCE).state == "completed"


def test_pause_keeps_the_share_and_resumes_the_stage() -> None:
    paused = rollout(VersionLoaded(), StagePassed(), Paused(ME))
    assert (paused.percent, paused.reason) == (10, "paused by ada")
    resumed = transition(paused, Resumed(ME), 50.0)
    assert (resumed.state, resumed.stage, resumed.stage_began_unix_s) == ("running", 1, 50.0)


def test_pause_while_loading_sends_no_request_and_resumes_loading() -> None:
    paused = rollout(Paused(ME))
    assert paused.percent == 0
    assert transition(paused, Resumed(ME), 5.0).state == "loading"
    for event in (Promoted(ME), Breached("x")):
        with pytest.raises(IllegalTransition, match="loaded"):
            transition(paused, event, 5.0)


def test_version_that_is_not_loaded_cannot_be_promoted() -> None:
    with pytest.raises(IllegalTransition, match="is not loaded yet"):
        transition(rollout(), Promoted(ME), 5.0)


def test_resumed_rollback_is_a_new_attempt_with_its_own_evidence() -> None:
    back = rollout(VersionLoaded(), StagePassed(), Breached("bad"))
    assert (back.percent, back.reason) == (0, "bad")
    again = transition(back, Resumed(ME), 60.0)
    assert (again.state, again.stage, again.attempt, again.percent, again.loaded) == ("loading", 0, 2, 0, False)
    assert [again.trial, rollout().trial] == [100, 0]
    third = transition(transition(again, LoadFailed("no"), 61.0), Resumed(ME), 62.0)
    assert transition(transition(third, VersionLoaded(), 63.0), StagePassed(), 64.0).trial == 201


def test_superseded_rollback_keeps_its_reason() -> None:
    over = transition(rollout(VersionLoaded(), Breached("5% against 2%")), Superseded(), 9.0)
    assert (over.state, over.reason) == ("superseded", "5% against 2%")


def test_attempts_are_bounded() -> None:
    tried = rollout(VersionLoaded(), Breached("bad"))
    with pytest.raises(IllegalTransition, match="1000 times"):
        transition(replace(tried, attempt=MAX_ATTEMPTS), Resumed(ME), 1.0)


def test_rollout_id_depends_only_on_the_step() -> None:
    first, again = new_rollout(spec(), 1.0), new_rollout(spec(), 2.0)
    assert first.id == again.id == id_of(spec())
    others = {id_of(spec(end="v3")), id_of(spec("v0")), id_of(spec(channel="next")), id_of(spec(previous=first.id))}
    assert len({first.id, *others}) == 5
    it = spec()
    assert rollout_id(it.model, it.channel, it.from_digest, it.to_digest, "") == first.id


def test_changing_the_policy_changes_no_rollout_under_way() -> None:
    assert running().policy == CAREFUL


events = st.lists(st.sampled_from(list(ALL.values())), max_size=30)


def replayed(history: list[AnyEvent], policy: RolloutEntry = CAREFUL) -> list[Rollout]:
    """Return every state that the events lead through; events that are not allowed are skipped."""
    states = [rollout(policy=policy)]
    for second, event in enumerate(history, start=1):
        try:
            states.append(transition(states[-1], event, float(second)))
        except IllegalTransition:
            continue
    return states


@given(events)
def test_the_same_events_make_the_same_rollout(history: list[AnyEvent]) -> None:
    assert replayed(history) == replayed(history)


@given(events)
def test_stages_only_grow_within_an_attempt_and_ended_rollouts_stay_ended(history: list[AnyEvent]) -> None:
    states = replayed(history)
    for before, after in pairwise(states):
        assert before.state not in {"completed", "superseded"}
        assert after.lock_version == before.lock_version + 1
        if after.attempt == before.attempt:
            assert after.trial >= before.trial
            assert after.loaded >= before.loaded
        else:
            assert (before.state, after.state, after.stage) == ("rolled_back", "loading", 0)


@given(events)
def test_only_loaded_versions_get_traffic(history: list[AnyEvent]) -> None:
    for state in replayed(history):
        assert state.percent == 0 or state.loaded
        assert state.percent in {0, 1, 10, 50, 100}
        assert (state.percent == 100) == (state.state == "completed")


@given(events, st.integers(1, 5))
def test_a_rollout_of_any_number_of_stages_ends(history: list[AnyEvent], stages: int) -> None:
    policy = RolloutEntry("p", (*(StageEntry(n + 1, 1.0) for n in range(stages - 1)), StageEntry(100)))
    last = replayed([VersionLoaded(), *[StagePassed()] * stages, *history], policy)[-1]
    assert last.state == "completed"
