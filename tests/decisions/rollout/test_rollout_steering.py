"""Channels as gateways see them: declared, rolled out, halted or withdrawn, and never a split without a row."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.api import snapshot as snapshots
from functions.api.ids import INCOMING, EngineName, ModelId, PoolName, engine_name
from functions.api.snapshot import ModelEntry, PoolEntry, RolloutEntry, Snapshot, VersionEntry
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
from functions.decisions.rollout.lifecycle import IllegalTransition, Rollout, id_of, new_rollout, transition
from functions.decisions.rollout.steering import Create, PostEvent, Rows, Steered, follow_rollouts, steer
from tests.decisions.rollout.rollouts import AT_ONCE, BOT, CAREFUL, POOL, digest, rollout, spec

UNKNOWN = Rows(are_known=False)
NONE = Rows()


def version(name: str, content: str = "") -> VersionEntry:
    held = digest(content or name)
    return VersionEntry(name, held, engine_name(BOT, held), f"s3://x/{name}")


def model(*versions: str | VersionEntry, rollout: str = "careful", pool: str = POOL, **channels: str) -> ModelEntry:
    entries = tuple(version(one) if isinstance(one, str) else one for one in versions)
    return ModelEntry(BOT, PoolName(pool), "lora", entries, channels, "models.yaml", rollout)


def snapshot(*models: ModelEntry, policies: tuple[RolloutEntry, ...] = (AT_ONCE, CAREFUL)) -> Snapshot:
    pools = (PoolEntry(POOL, 2048), PoolEntry(PoolName("other"), 2048))
    return Snapshot(snapshots.SCHEMA_VERSION, 1, "r", 0.0, (), (), models, pools, rollouts=policies)


def rows(*of: Rollout) -> Rows:
    return Rows({(row.model, row.channel): row for row in of})


def steered(
    previous: ModelEntry | None, wanted: ModelEntry | None, known: Rows, *, declared: dict[str, str] | None = None
) -> Steered:
    """Steer; `declared` is the state in git if it names more than could be compiled."""
    git = {} if wanted is None and declared is None else {BOT: declared or dict(wanted.channels if wanted else {})}
    made = steer(
        snapshot(previous) if previous is not None else None,
        snapshot(wanted) if wanted is not None else snapshot(),
        {ModelId(name): channels for name, channels in git.items()},
        known,
    )
    snapshots.decode(snapshots.encode(made.snapshot))  # a published snapshot is valid
    return made


def only(made: Steered) -> ModelEntry:
    (entry,) = made.snapshot.models
    return entry


OLD, NEW = model("v1", "v2", stable="v1"), model("v1", "v2", stable="v2")
ME = "ada"


def test_a_first_publication_has_nothing_to_compare_with() -> None:
    made = steered(None, NEW, NONE)
    assert (only(made), made.commands, made.held) == (NEW, (), ())


def test_a_channel_that_moves_by_stages_waits_for_its_row() -> None:
    made = steered(OLD, NEW, NONE)
    assert made.commands == (Create(spec()),)
    assert only(made).channels == {"stable": "v1"}
    assert made.held == ("acme/bot:stable stays v1 until the registry has the rollout to v2",)


def test_loading_version_is_published_without_traffic() -> None:
    made = steered(OLD, NEW, rows(rollout()))
    assert only(made).channels == {"stable": "v1", INCOMING: "v2"}
    assert (only(made).splits, made.commands, made.held) == ((), (), ())
    assert [row.id for row in made.rollouts] == [id_of(spec())]


@pytest.mark.parametrize(("passed", "percent"), [(0, 1), (1, 10), (2, 50)])
def test_a_running_stage_splits_its_share(passed: int, percent: int) -> None:
    row = rollout(VersionLoaded(), *[StagePassed()] * passed)
    entry = only(steered(OLD, NEW, rows(row)))
    (split,) = entry.splits
    assert (split.channel, split.rollout, split.stage, split.percent) == ("stable", row.id, passed, percent)
    assert (split.candidate, split.sticky, entry.channels) == ("v2", "session", {"stable": "v1"})


def test_pause_keeps_the_split_or_the_version_without_a_slot() -> None:
    (split,) = only(steered(OLD, NEW, rows(rollout(VersionLoaded(), StagePassed(), Paused(ME))))).splits
    assert split.percent == 10
    entry = only(steered(OLD, model("v2", stable="v2"), rows(rollout(Paused(ME)))))
    assert (entry.channels, [one.name for one in entry.versions]) == ({"stable": "v1"}, ["v1", "v2"])
    assert INCOMING in only(steered(OLD, NEW, rows(rollout(Paused(ME), Resumed(ME))))).channels


@pytest.mark.parametrize("previous", [None, OLD, NEW])
def test_completed_rollout_publishes_the_declaration(previous: ModelEntry | None) -> None:
    made = steered(previous, NEW, rows(rollout(VersionLoaded(), Promoted(ME))))
    assert (only(made), made.commands, made.rollouts) == (NEW, (), ())


@pytest.mark.parametrize("end", [(VersionLoaded(), Breached("bad")), (LoadFailed("wrong rank"),)])
@pytest.mark.parametrize("previous", [None, OLD])
def test_rolled_back_channel_stays_back(previous: ModelEntry | None, end: tuple[AnyEvent, ...]) -> None:
    """The channel stays back in every reconcile until the target changes or an operator resumes it."""
    row = rollout(*end)
    made = steered(previous, NEW, rows(row))
    assert (only(made).channels, only(made).splits, made.commands) == ({"stable": "v1"}, (), ())
    assert [shown.state for shown in made.rollouts] == ["rolled_back"]


def test_resumed_rollback_loads_and_splits_again() -> None:
    again = transition(rollout(VersionLoaded(), Breached("bad")), Resumed(ME), 9.0)
    assert only(steered(OLD, NEW, rows(again))).channels == {"stable": "v1", INCOMING: "v2"}
    (split,) = only(steered(OLD, NEW, rows(transition(again, VersionLoaded(), 10.0)))).splits
    assert split.stage == 100


def test_new_target_after_a_halt_is_a_new_rollout() -> None:
    back = rollout(VersionLoaded(), Breached("bad"))
    made = steered(OLD, model("v1", "v2", "v3", stable="v3"), rows(back))
    following = spec("v1", "v3", previous=back.id)
    assert made.commands == (PostEvent(back.id, back.lock_version, Superseded(id_of(following))), Create(following))
    assert only(made).channels["stable"] == "v1"


def test_halted_target_withdrawn_and_declared_again_is_a_new_rollout() -> None:
    back = rollout(VersionLoaded(), Breached("bad"))
    made = steered(OLD, OLD, rows(back))
    assert made.commands == (PostEvent(back.id, back.lock_version, Superseded("")),)
    assert (only(made), made.rollouts) == (OLD, ())
    again = steered(OLD, NEW, rows(transition(back, Superseded(""), 9.0)))
    assert again.commands == (Create(spec(previous=back.id)),)


def test_halted_target_declared_again_after_another_version_is_a_new_rollout() -> None:
    back = rollout(VersionLoaded(), Breached("bad"))
    third = model("v1", "v2", "v3", stable="v3")
    made = steered(third, model("v1", "v2", "v3", stable="v2"), rows(back))
    assert made.commands == (Create(spec("v3", "v2", previous=back.id)),)


@pytest.mark.parametrize(
    "before", [(), (VersionLoaded(),), (VersionLoaded(), StagePassed()), (VersionLoaded(), Paused(ME))]
)
def test_reverted_declaration_withdraws_the_rollout(before: tuple[AnyEvent, ...]) -> None:
    row = rollout(*before)
    made = steered(OLD, OLD, rows(row))
    withdrawn = Withdrawn("models.yaml points stable at v1 again")
    assert made.commands == (PostEvent(row.id, row.lock_version, withdrawn),)
    assert only(made) == OLD, "no split from here on, whether the registry answers or not"


def test_new_target_supersedes_a_running_rollout() -> None:
    row = rollout(VersionLoaded(), StagePassed())
    made = steered(OLD, model("v1", "v2", "v3", stable="v3"), rows(row))
    following = spec("v1", "v3", previous=row.id)
    assert made.commands == (PostEvent(row.id, row.lock_version, Superseded(id_of(following))), Create(following))
    assert (only(made).channels["stable"], only(made).splits) == ("v1", ())
    after = transition(row, Superseded(id_of(following)), 9.0)
    assert steered(OLD, model("v1", "v2", "v3", stable="v3"), rows(after)).commands == (Create(following),)


def test_new_target_with_a_one_stage_policy_ends_the_rollout() -> None:
    row = rollout(VersionLoaded())
    made = steered(OLD, model("v1", "v2", "v3", rollout="at-once", stable="v3"), rows(row))
    assert made.commands == (PostEvent(row.id, row.lock_version, Superseded("")),)
    assert only(made).channels == {"stable": "v3"}


def test_one_stage_policy_creates_no_row() -> None:
    made = steered(OLD, model("v1", "v2", rollout="at-once", stable="v2"), NONE)
    assert (made.commands, only(made).channels) == ((), {"stable": "v2"})


def test_a_model_that_names_no_policy_has_the_built_in_stages() -> None:
    (created,) = steered(OLD, model("v1", "v2", rollout="", stable="v2"), NONE).commands
    assert isinstance(created, Create)
    assert [stage.percent for stage in created.spec.policy.stages] == [1, 10, 50, 100]


@pytest.mark.parametrize("before", [(), (VersionLoaded(), StagePassed())])
def test_old_version_stays_while_it_serves_although_it_is_undeclared(before: tuple[AnyEvent, ...]) -> None:
    entry = only(steered(OLD, model("v2", stable="v2"), rows(rollout(*before))))
    assert [one.name for one in entry.versions] == ["v1", "v2"]
    assert entry.channels["stable"] == "v1"
    halted = rollout(VersionLoaded(), Breached("bad"))
    assert only(steered(OLD, model("v2", stable="v2"), rows(halted))).channels == {"stable": "v1"}
    done = rollout(VersionLoaded(), Promoted(ME))
    assert [one.name for one in only(steered(OLD, model("v2", stable="v2"), rows(done))).versions] == ["v2"]


def test_undeclared_model_withdraws_its_rollout() -> None:
    row = rollout(VersionLoaded())
    made = steered(OLD, None, rows(row))
    assert made.commands == (
        PostEvent(row.id, row.lock_version, Withdrawn("acme/bot:stable is not declared any more")),
    )
    back = rollout(VersionLoaded(), Breached("bad"))
    assert steered(OLD, None, rows(back)).commands == (PostEvent(back.id, back.lock_version, Superseded()),)
    assert steered(OLD, None, rows(rollout(VersionLoaded(), Promoted(ME)))).commands == ()


def test_undeclared_channel_withdraws_its_rollout() -> None:
    row = rollout(VersionLoaded())
    made = steered(OLD, model("v1", "v2", next="v2"), rows(row))
    assert [command.rollout for command in made.commands if isinstance(command, PostEvent)] == [row.id]
    assert only(made).channels == {"next": "v2"}


@pytest.mark.parametrize("known", [NONE, UNKNOWN, rows(rollout(VersionLoaded()))], ids=["no-row", "unknown", "running"])
def test_missing_artifact_moves_no_channel(known: Rows) -> None:
    """v2 is declared and its artifact is missing: the compiler leaves out both."""
    made = steered(OLD, model("v1"), known, declared={"stable": "v2"})
    assert only(made).channels["stable"] == "v1"
    assert made.commands == ()


def test_unknown_rows_move_no_staged_channel() -> None:
    made = steered(OLD, NEW, UNKNOWN)
    assert (only(made).channels, made.commands) == ({"stable": "v1"}, ())
    assert made.held == ("acme/bot:stable stays v1: the registry has not reported its rollouts",)
    assert only(steered(None, NEW, UNKNOWN)).channels == {"stable": "v2"}
    at_once = steered(OLD, model("v1", "v2", rollout="at-once", stable="v2"), UNKNOWN)
    assert only(at_once).channels == {"stable": "v2"}


def test_a_model_that_moves_to_another_pool_leaves_its_rollout() -> None:
    row = rollout(VersionLoaded())
    made = steered(OLD, model("v1", "v2", pool="other", stable="v2"), rows(row))
    assert made.commands == (PostEvent(row.id, row.lock_version, Superseded()),)
    assert only(made).channels == {"stable": "v2"}


def test_version_name_with_a_new_artifact_applies_at_once() -> None:
    again = model(version("v1", "other"), stable="v1")
    assert only(steered(OLD, again, NONE)) == again
    row = rollout(VersionLoaded())
    made = steered(OLD, model(version("v1", "other"), "v2", stable="v2"), rows(row))
    assert made.commands == (PostEvent(row.id, row.lock_version, Superseded()),)
    assert only(made).splits == ()


def test_the_same_artifact_under_another_name_is_no_rollout() -> None:
    renamed = model("v1", version("v1-again", "v1"), stable="v1-again")
    assert steered(OLD, renamed, NONE).commands == ()
    assert only(steered(OLD, renamed, NONE)).channels == {"stable": "v1-again"}


def test_channel_moved_without_a_row_counts_as_the_current_version() -> None:
    done = rollout(VersionLoaded(), Promoted(ME))
    third = model("v1", "v2", "v3", stable="v3")
    made = steered(third, model("v1", "v2", "v3", stable="v2"), rows(done))
    assert made.commands == (Create(spec("v3", "v2", previous=done.id)),)


def test_old_resumed_rollout_does_not_move_the_channel() -> None:
    again = transition(rollout(VersionLoaded(), Breached("bad")), Resumed(ME), 9.0)
    third = model("v1", "v2", "v3", stable="v3")
    made = steered(third, third, rows(again))
    assert only(made).channels == {"stable": "v3"}
    assert [type(command.event) for command in made.commands if isinstance(command, PostEvent)] == [Superseded]


def test_two_channels_load_side_by_side() -> None:
    before = model("v1", "v2", "v3", stable="v1", next="v1")
    wanted = model("v1", "v2", "v3", stable="v2", next="v3")
    both = rows(rollout(), rollout(channel="next", end="v3"))
    entry = only(steered(before, wanted, both))
    assert entry.channels == {"stable": "v1", "next": "v1", INCOMING: "v3", "incoming-2": "v2"}


def api(previous: ModelEntry | None, wanted: ModelEntry, known: Rows) -> Steered:
    undeclared = msgspec.structs.replace(wanted, declared_in="")
    return steer(snapshot(previous) if previous is not None else None, snapshot(undeclared), {}, known)


def test_api_model_follows_its_rows_without_commands() -> None:
    row = rollout(VersionLoaded(), StagePassed(), origin="api")
    made = api(OLD, OLD, rows(row))
    assert made.commands == ()
    (split,) = only(made).splits
    assert (split.percent, split.candidate) == (10, "v2")


def test_api_model_without_rollout_uses_its_own_channel() -> None:
    assert only(api(OLD, NEW, rows(rollout(VersionLoaded(), Promoted(ME), origin="api")))).channels == {"stable": "v2"}
    assert only(api(OLD, OLD, rows(rollout(VersionLoaded(), Breached("bad"), origin="api")))).channels == {
        "stable": "v1"
    }
    assert only(api(OLD, NEW, NONE)).channels == {"stable": "v2"}


def test_base_rolls_out_in_stages_like_an_adapter() -> None:
    id_ = ModelId(POOL)
    versions = tuple(msgspec.structs.replace(version(name), engine_name=EngineName(POOL)) for name in ("v1", "v2"))
    base = ModelEntry(id_, POOL, "base", versions, {"stable": "v2"}, "models.yaml", "careful")
    old = msgspec.structs.replace(base, channels={"stable": "v1"})
    made = steer(snapshot(old), snapshot(base), {id_: {"stable": "v2"}}, NONE)
    (created,) = made.commands
    assert isinstance(created, Create) and (created.spec.from_version, created.spec.to_version) == ("v1", "v2")
    assert only(made).channels == {"stable": "v1"}
    row = transition(new_rollout(created.spec, 0.0), VersionLoaded(), 1.0)
    fresh = msgspec.structs.replace(base, versions=versions[1:])  # git no longer names the old version
    running = steer(snapshot(old), snapshot(fresh), {id_: {"stable": "v2"}}, rows(row))
    assert [(each.name, each.engine_name) for each in only(running).versions] == [("v1", POOL), ("v2", POOL)]
    assert [(split.candidate, split.percent) for split in only(running).splits] == [("v2", row.percent)]


names = st.sampled_from(["v1", "v2", "v3"])
histories = st.lists(
    st.sampled_from(
        [VersionLoaded(), StagePassed(), Breached("x"), Paused(ME), Resumed(ME), Promoted(ME), Withdrawn("y")]
    ),
    max_size=8,
)


@given(was=st.none() | names, target=names, history=histories, start=names, end=names)
def test_splits_match_rows_and_channels_point_at_versions(
    was: str | None, target: str, history: list[AnyEvent], start: str, end: str
) -> None:
    row = rollout(start=start, end=end)
    for event in history:
        try:
            row = transition(row, event, 1.0)
        except IllegalTransition:
            continue
    known = rows(row) if start != end else NONE
    previous = model("v1", "v2", "v3", stable=was) if was is not None else None
    made = steered(previous, model("v1", "v2", "v3", stable=target), known)
    entry = only(made)
    for split in entry.splits:
        assert (split.rollout, split.percent, split.stage, split.candidate) == (
            row.id,
            row.percent,
            row.trial,
            row.to_version,
        )
        assert row.is_active
    assert entry.channels["stable"] in {was or target, target, start, end}
    if was is not None and was != target and known is NONE:
        assert entry.channels["stable"] == was, "nothing flips without a row"


# -- published snapshots with new states of the rows ------------------------------------------------------------------


def published(row: Rollout) -> Snapshot:
    """Return the snapshot published for v1 -> v2 with this row, and with a model beside it that has no rollout."""
    made = steered(OLD, NEW, rows(row)).snapshot
    other = msgspec.structs.replace(OLD, id=ModelId("acme/other"))
    return msgspec.structs.replace(made, models=(*made.models, other))


def moved(before: Rollout, *after: Rollout) -> ModelEntry:
    was = published(before)
    made = follow_rollouts(was, rows(*after))
    snapshots.decode(snapshots.encode(made))
    assert made.models[1:] == was.models[1:]
    return made.models[0]


@pytest.mark.parametrize("event", [Breached("x"), RolledBack(ME), Withdrawn("x"), Superseded()])
@pytest.mark.parametrize("passed", [0, 1, 2])
def test_rollback_applies_to_the_published_snapshot(event: AnyEvent, passed: int) -> None:
    row = rollout(VersionLoaded(), *[StagePassed()] * passed)
    assert published(row).models[0].splits
    entry = moved(row, transition(row, event, 9.0))
    assert (entry.channels, entry.splits) == ({"stable": "v1"}, ())
    assert {one.name for one in entry.versions} == {"v1", "v2"}


def test_published_split_follows_the_row() -> None:
    row = rollout(VersionLoaded())
    (split,) = moved(row, transition(row, StagePassed(), 9.0)).splits
    assert (split.percent, split.stage) == (10, 1)
    entry = moved(row, transition(row, Promoted(ME), 9.0))
    assert (entry.channels, entry.splits) == ({"stable": "v2"}, ())
    again = transition(transition(row, Breached("x"), 9.0), Resumed(ME), 10.0)
    entry = moved(row, again)
    assert (entry.channels, entry.splits) == ({"stable": "v1", INCOMING: "v2"}, ())


@pytest.mark.parametrize(
    "events", [(), (VersionLoaded(),), (VersionLoaded(), StagePassed()), (VersionLoaded(), Breached("x"))]
)
def test_unchanged_rows_change_nothing(events: tuple[AnyEvent, ...]) -> None:
    row = rollout(*events)
    assert moved(row, row) == published(row).models[0]
    assert moved(row) == published(row).models[0], "a channel without a row is the declaration's"


def test_channel_moved_since_stays() -> None:
    for state in (
        rollout(VersionLoaded(), Promoted(ME)),
        rollout(VersionLoaded()),
        rollout(VersionLoaded(), Breached("x")),
    ):
        flipped = model("v1", "v2", "v3", stable="v3")
        assert follow_rollouts(snapshot(flipped), rows(state)).models == (flipped,)
    back = follow_rollouts(snapshot(OLD), rows(rollout(VersionLoaded(), Promoted(ME)))).models
    assert back == (OLD,), "a flip back after it completed is no rollout's"
    workshop = model(version("v1"), version("v2", "another"), stable="v1")
    assert follow_rollouts(snapshot(workshop), rows(rollout(VersionLoaded()))).models == (workshop,), (
        "v2 means something else now"
    )
    elsewhere = model("v1", "v2", stable="v1", pool="other")
    assert follow_rollouts(snapshot(elsewhere), rows(rollout(VersionLoaded()))).models == (elsewhere,)


def of_base(stable: str) -> ModelEntry:
    versions = tuple(VersionEntry(name, digest(name), EngineName(POOL), f"s3://x/{name}") for name in ("v1", "v2"))
    return ModelEntry(ModelId(POOL), POOL, "base", versions, {"stable": stable}, "models.yaml", "careful")


@pytest.mark.parametrize(("bases", "stands"), [(None, "v1"), ({POOL}, "v1"), (set(), "v2"), ({"other"}, "v2")])
def test_only_bases_with_replicas_per_version_roll_out_in_stages(bases: set[ModelId] | None, stands: str) -> None:
    """Channels of other bases move as a whole; one target may have both kinds."""
    declared = {ModelId(POOL): {"stable": "v2"}}
    made = steer(snapshot(of_base("v1")), snapshot(of_base("v2")), declared, NONE, bases=bases)
    assert only(made).channels == {"stable": stands}
    assert bool(made.commands) == (stands == "v1")


def test_running_base_rollout_continues_without_its_service() -> None:
    """Otherwise its rollout would run for ever on a channel that has left it."""
    row = rollout(VersionLoaded(), model=POOL)
    declared = {ModelId(POOL): {"stable": "v2"}}
    made = steer(snapshot(of_base("v1")), snapshot(of_base("v2")), declared, rows(row), bases=())
    assert (only(made).channels, [split.rollout for split in only(made).splits]) == ({"stable": "v1"}, [row.id])
