"""The control loop, declaration to completed or rolled back rollout: all parts together, in virtual time."""

import pytest

from functions.controller.rollouts.driver import rollouts_in_words
from functions.decisions.rollout.lifecycle import Rollout
from tests.controller.configs import load, pool, tenant
from tests.controller.rollouts.rig import Behaviour, Rig, adapter, fleet, policy


async def begun(rig: Rig) -> None:
    """Start with v1 serving and v2 declared."""
    rig.controller()
    await rig.seconds(3)
    assert rig.bot.channels == {"stable": "v1"}
    rig.declared = fleet("v1", "v2", stable="v2")


async def running(rig: Rig) -> Rollout:
    """Continue until v2 gets its first requests."""
    await begun(rig)
    await rig.until(lambda: bool(rig.bot.splits))
    return await only(rig)


async def only(rig: Rig) -> Rollout:
    (row,) = await rig.rollouts()
    return row


async def test_good_version_passes_its_stages(rig: Rig) -> None:
    await begun(rig)
    shares: list[int] = []
    while not shares or shares[-1] != 100:
        await rig.second()
        shares.append(rig.bot.splits[0].percent if rig.bot.splits else 100 * (rig.bot.channels["stable"] == "v2"))
        assert len(shares) < 60
    assert sorted(set(shares)) == [0, 10, 50, 100]
    assert shares == sorted(shares), "the share only grows"
    assert rig.bot.channels == {"stable": "v2"}
    row = await only(rig)
    assert (row.state, row.reason) == ("completed", "every stage passed")
    assert len(shares) >= 20, "each stage lasts its time"


async def test_unloaded_version_gets_no_requests(rig: Rig) -> None:
    await begun(rig)
    rig.replicas[1].loads = False
    await rig.seconds(30)
    assert rig.bot.channels == {"incoming": "v2", "stable": "v1"}
    assert "v2" not in rig.gateway.seen
    rig.replicas[1].loads = True
    await rig.until(lambda: rig.gateway.seen.get("v2", 0) > 0)


@pytest.mark.parametrize(
    ("behaviour", "told"),
    [(Behaviour(error_ratio=0.2), "error_rate > 2%"), (Behaviour(median_ms=200.0), "p50_latency > 1.5x")],
    ids=["errors", "slow"],
)
async def test_worse_version_is_rolled_back_in_its_first_stage(rig: Rig, behaviour: Behaviour, told: str) -> None:
    rig.gateway.behaviours["v2"] = behaviour
    await running(rig)
    took_s = await rig.until(lambda: not rig.bot.splits)
    row = await only(rig)
    assert (row.state, row.stage, rig.bot.channels) == ("rolled_back", 0, {"stable": "v1"})
    assert told in row.reason
    assert took_s <= 60
    seen = rig.gateway.seen["v2"]
    assert seen < rig.requests_per_s * (took_s + 2) * 0.2, "only its share ever saw it"
    await rig.seconds(20)
    assert rig.gateway.seen["v2"] == seen, "nobody gets there again"
    assert len(await rig.rollouts()) == 1, "what git still says does not begin it anew"


async def test_version_no_replica_can_load_is_rolled_back_before_any_request(rig: Rig) -> None:
    for replica in rig.replicas:
        replica.refuses = {adapter("v2"): "its rank 64 is over the engine's 16"}
    await begun(rig)
    await rig.seconds(30)
    row = await only(rig)
    assert (row.state, row.reason) == ("rolled_back", "no replica can load v2: its rank 64 is over the engine's 16")
    assert "v2" not in rig.gateway.seen


async def test_a_stage_whose_evidence_never_arrives_is_held(rig: Rig) -> None:
    rig.gateway.is_mute = True
    row = await running(rig)
    await rig.seconds(120)
    assert (await only(rig)).stage == row.stage == 0
    assert [split.percent for split in rig.bot.splits] == [10]
    (controller,) = rig.controllers
    assert "no gateway has reported yet" in controller.driver.verdicts[row.id].reason


async def test_a_stage_without_enough_requests_is_held(rig: Rig) -> None:
    rig.requests_per_s = 1
    await running(rig)
    await rig.seconds(60)
    assert (await only(rig)).stage == 0
    rig.requests_per_s = 100
    await rig.until(lambda: rig.bot.channels["stable"] == "v2")


async def test_paused_rollout_keeps_its_share_until_resumed(rig: Rig) -> None:
    row = await running(rig)
    assert (await rig.order(row.id, "pause")).status_code == 200
    await rig.seconds(40)
    assert [split.percent for split in rig.bot.splits] == [10]
    assert (await rig.order(row.id, "resume")).status_code == 200
    await rig.until(lambda: rig.bot.channels["stable"] == "v2")


async def test_bad_version_is_rolled_back_while_paused(rig: Rig) -> None:
    row = await running(rig)
    await rig.order(row.id, "pause")
    rig.gateway.behaviours["v2"] = Behaviour(error_ratio=0.5)
    await rig.until(lambda: not rig.bot.splits)
    assert (await only(rig)).state == "rolled_back"


async def test_promote_command_completes_at_once(rig: Rig) -> None:
    row = await running(rig)
    assert (await rig.order(row.id, "promote")).status_code == 200
    await rig.second()
    assert rig.bot.channels == {"stable": "v2"}


async def test_rollback_command_and_retry(rig: Rig) -> None:
    row = await running(rig)
    await rig.order(row.id, "rollback")
    await rig.second()
    assert (rig.bot.channels, rig.bot.splits) == ({"stable": "v1"}, ())
    await rig.seconds(5)
    await rig.order(row.id, "resume")
    await rig.until(lambda: rig.bot.channels["stable"] == "v2")
    again = await only(rig)
    assert (again.attempt, again.state) == (2, "completed")


async def test_reverted_commit_withdraws_the_rollout(rig: Rig) -> None:
    await running(rig)
    rig.declared = fleet("v1", "v2", stable="v1")
    await rig.second()
    assert (rig.bot.channels, rig.bot.splits) == ({"stable": "v1"}, ())
    assert (await only(rig)).reason == "3.yaml points stable at v1 again"


async def test_another_target_supersedes_the_rollout(rig: Rig) -> None:
    first = await running(rig)
    rig.declared = fleet("v1", "v2", "v3", stable="v3")
    await rig.until(lambda: rig.bot.channels["stable"] == "v3")
    rows = await rig.rollouts()
    assert [(row.from_version, row.to_version, row.state) for row in rows] == [
        ("v1", "v2", "superseded"),
        ("v1", "v3", "completed"),
    ]
    assert rows[1].previous == first.id


async def test_a_version_that_is_dropped_from_the_file_serves_until_the_rollout_ends(rig: Rig) -> None:
    await running(rig)
    rig.declared = fleet("v2", stable="v2")
    await rig.second()
    assert [version.name for version in rig.bot.versions] == ["v1", "v2"]
    await rig.until(lambda: rig.bot.channels["stable"] == "v2")
    assert [version.name for version in rig.bot.versions] == ["v2"]


async def test_deleted_model_ends_its_rollout(rig: Rig) -> None:
    await running(rig)
    rig.declared = load(pool(), tenant("acme", "ci"))
    await rig.second()
    assert rig.snapshot.models == ()
    assert (await only(rig)).reason == "acme/bot:stable is not declared any more"


async def test_one_stage_policy_moves_at_once_without_a_row(rig: Rig) -> None:
    rig.controller()
    await rig.seconds(3)
    at_once = policy(stages="{percent: 100}", rest="minRequests: 1")
    rig.declared = fleet("v1", "v2", stable="v2", policies=(at_once,))
    await rig.until(lambda: rig.bot.channels["stable"] == "v2", at_most_s=5)
    assert await rig.rollouts() == []


async def test_rollouts_are_described_in_words(rig: Rig) -> None:
    row = await running(rig)
    await rig.seconds(3)
    (controller,) = rig.controllers
    outcome = await controller.publish()
    words = rollouts_in_words(controller.rows, controller.driver, outcome.rollouts)
    (shown,) = words["listed"]
    assert shown["id"] == row.id
    assert shown["words"] == "acme/bot:stable goes from v1 to v2, stage 1 of 3 (10%)"
    assert shown["verdict"].startswith("stage 1 of 3 (10%): ")
    assert [text.split(":")[0] for text in shown["conditions"]] == ["error_rate > 2%", "p50_latency > 1.5x"]
    assert outcome.complete, "a rollout under way leaves nothing to publish"
