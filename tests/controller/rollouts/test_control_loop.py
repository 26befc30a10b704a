"""From a declaration to a completed rollout, or one that was taken back: all parts together, in virtual time."""

import pytest

from functions.controller.rollouts.driver import rollouts_in_words
from functions.decisions.rollout.lifecycle import Rollout
from tests.controller.configs import load, pool, tenant
from tests.controller.rollouts.world import Behaviour, World, adapter, fleet, policy


async def begun(world: World) -> None:
    """v1 serves, and v2 was declared."""
    world.controller()
    await world.seconds(3)
    assert world.bot.channels == {"stable": "v1"}
    world.declared = fleet("v1", "v2", stable="v2")


async def running(world: World) -> Rollout:
    """v2 gets its first requests."""
    await begun(world)
    await world.until(lambda: bool(world.bot.splits))
    return await only(world)


async def only(world: World) -> Rollout:
    (row,) = await world.rollouts()
    return row


async def test_a_good_version_goes_through_its_stages(world: World) -> None:
    await begun(world)
    shares: list[int] = []
    while not shares or shares[-1] != 100:
        await world.second()
        shares.append(world.bot.splits[0].percent if world.bot.splits else 100 * (world.bot.channels["stable"] == "v2"))
        assert len(shares) < 60
    assert sorted(set(shares)) == [0, 10, 50, 100]
    assert shares == sorted(shares), "the share only grows"
    assert world.bot.channels == {"stable": "v2"}
    row = await only(world)
    assert (row.state, row.reason) == ("completed", "every stage passed")
    assert len(shares) >= 20, "each stage lasts its time"


async def test_nobody_is_sent_to_a_version_before_it_is_loaded(world: World) -> None:
    await begun(world)
    world.replicas[1].loads = False
    await world.seconds(30)
    assert world.bot.channels == {"incoming": "v2", "stable": "v1"}
    assert "v2" not in world.gateway.seen
    world.replicas[1].loads = True
    await world.until(lambda: world.gateway.seen.get("v2", 0) > 0)


@pytest.mark.parametrize(
    ("behaviour", "told"),
    [(Behaviour(error_ratio=0.2), "error_rate > 2%"), (Behaviour(median_ms=200.0), "p50_latency > 1.5x")],
    ids=["errors", "slow"],
)
async def test_a_worse_version_is_taken_back_in_its_first_stage(world: World, behaviour: Behaviour, told: str) -> None:
    world.gateway.behaviours["v2"] = behaviour
    await running(world)
    took_s = await world.until(lambda: not world.bot.splits)
    row = await only(world)
    assert (row.state, row.stage, world.bot.channels) == ("rolled_back", 0, {"stable": "v1"})
    assert told in row.reason
    assert took_s <= 60
    seen = world.gateway.seen["v2"]
    assert seen < world.requests_per_s * (took_s + 2) * 0.2, "only its share ever saw it"
    await world.seconds(20)
    assert world.gateway.seen["v2"] == seen, "nobody gets there again"
    assert len(await world.rollouts()) == 1, "what git still says does not begin it anew"


async def test_a_version_that_no_replica_can_load_is_taken_back_unseen(world: World) -> None:
    for replica in world.replicas:
        replica.refuses = {adapter("v2"): "its rank 64 is over the engine's 16"}
    await begun(world)
    await world.seconds(30)
    row = await only(world)
    assert (row.state, row.reason) == ("rolled_back", "no replica can load v2: its rank 64 is over the engine's 16")
    assert "v2" not in world.gateway.seen


async def test_a_stage_whose_evidence_never_arrives_is_held(world: World) -> None:
    world.gateway.is_mute = True
    row = await running(world)
    await world.seconds(120)
    assert (await only(world)).stage == row.stage == 0
    assert [split.percent for split in world.bot.splits] == [10]
    (controller,) = world.controllers
    assert "no gateway has told of it yet" in controller.driver.verdicts[row.id].reason


async def test_a_stage_without_enough_requests_is_held(world: World) -> None:
    world.requests_per_s = 1
    await running(world)
    await world.seconds(60)
    assert (await only(world)).stage == 0
    world.requests_per_s = 100
    await world.until(lambda: world.bot.channels["stable"] == "v2")


async def test_a_pause_holds_the_share_until_somebody_resumes(world: World) -> None:
    row = await running(world)
    assert (await world.order(row.id, "pause")).status_code == 200
    await world.seconds(40)
    assert [split.percent for split in world.bot.splits] == [10]
    assert (await world.order(row.id, "resume")).status_code == 200
    await world.until(lambda: world.bot.channels["stable"] == "v2")


async def test_a_pause_does_not_protect_a_bad_version(world: World) -> None:
    row = await running(world)
    await world.order(row.id, "pause")
    world.gateway.behaviours["v2"] = Behaviour(error_ratio=0.5)
    await world.until(lambda: not world.bot.splits)
    assert (await only(world)).state == "rolled_back"


async def test_somebody_promotes_it_at_once(world: World) -> None:
    row = await running(world)
    assert (await world.order(row.id, "promote")).status_code == 200
    await world.second()
    assert world.bot.channels == {"stable": "v2"}


async def test_somebody_rolls_it_back_and_tries_again(world: World) -> None:
    row = await running(world)
    await world.order(row.id, "rollback")
    await world.second()
    assert (world.bot.channels, world.bot.splits) == ({"stable": "v1"}, ())
    await world.seconds(5)
    await world.order(row.id, "resume")
    await world.until(lambda: world.bot.channels["stable"] == "v2")
    again = await only(world)
    assert (again.attempt, again.state) == (2, "completed")


async def test_whoever_reverts_the_commit_withdraws_it(world: World) -> None:
    await running(world)
    world.declared = fleet("v1", "v2", stable="v1")
    await world.second()
    assert (world.bot.channels, world.bot.splits) == ({"stable": "v1"}, ())
    assert (await only(world)).reason == "3.yaml points stable at v1 again"


async def test_another_target_supersedes_it(world: World) -> None:
    first = await running(world)
    world.declared = fleet("v1", "v2", "v3", stable="v3")
    await world.until(lambda: world.bot.channels["stable"] == "v3")
    rows = await world.rollouts()
    assert [(row.from_version, row.to_version, row.state) for row in rows] == [
        ("v1", "v2", "superseded"),
        ("v1", "v3", "completed"),
    ]
    assert rows[1].previous == first.id


async def test_a_version_that_is_dropped_from_the_file_serves_until_the_rollout_ends(world: World) -> None:
    await running(world)
    world.declared = fleet("v2", stable="v2")
    await world.second()
    assert [version.name for version in world.bot.versions] == ["v1", "v2"]
    await world.until(lambda: world.bot.channels["stable"] == "v2")
    assert [version.name for version in world.bot.versions] == ["v2"]


async def test_a_deleted_model_takes_its_rollout_along(world: World) -> None:
    await running(world)
    world.declared = load(pool(), tenant("acme", "ci"))
    await world.second()
    assert world.snapshot.models == ()
    assert (await only(world)).reason == "acme/bot:stable is not declared any more"


async def test_a_policy_of_one_stage_moves_at_once_and_leaves_no_row(world: World) -> None:
    world.controller()
    await world.seconds(3)
    at_once = policy(stages="{percent: 100}", rest="minRequests: 1")
    world.declared = fleet("v1", "v2", stable="v2", policies=(at_once,))
    await world.until(lambda: world.bot.channels["stable"] == "v2", at_most_s=5)
    assert await world.rollouts() == []


async def test_rollouts_are_told_in_words(world: World) -> None:
    row = await running(world)
    await world.seconds(3)
    (controller,) = world.controllers
    outcome = await controller.publish()
    words = rollouts_in_words(controller.rows, controller.driver, outcome.rollouts)
    (shown,) = words["listed"]
    assert shown["id"] == row.id
    assert shown["words"] == "acme/bot:stable goes from v1 to v2, stage 1 of 3 (10%)"
    assert shown["verdict"].startswith("stage 1 of 3 (10%): ")
    assert [text.split(":")[0] for text in shown["conditions"]] == ["error_rate > 2%", "p50_latency > 1.5x"]
    assert outcome.complete, "a rollout under way leaves nothing to publish"
