"""Controllers that are killed, duplicated or cut off: a rollout continues or is rolled back, and never forks."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from functions.api.ids import Digest, ModelId
from functions.controller.snapshot.registry_client import RowMoved
from functions.decisions.rollout.codec import Command
from functions.decisions.rollout.events import Promoted
from tests.controller.rollouts.rig import BOT, Behaviour, Controller, Rig, digest_of, fleet
from tests.controller.rollouts.test_control_loop import begun, only, running
from tests.soak import sampled


class Killed(BaseException):
    """The process is dead: no later line runs."""


class Cut(httpx.AsyncBaseTransport):
    """Lets a number of requests through, then kills the caller: before the registry receives one, or after."""

    def __init__(self, inner: httpx.AsyncBaseTransport, requests: int, *, is_heard: bool) -> None:
        self._inner, self._left, self._is_heard = inner, requests, is_heard

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._left > 0:
            self._left -= 1
            return await self._inner.handle_async_request(request)
        if self._is_heard:
            await (await self._inner.handle_async_request(request)).aread()
        raise Killed


def linear(rig_rows: list[tuple[int, str]]) -> bool:
    versions = [version for version, _ in rig_rows]
    return versions == sorted(set(versions))


async def history(rig: Rig, rollout: str) -> list[tuple[int, str]]:
    answer = await rig.client.get(f"/v1/rollouts/{rollout}", headers={"authorization": "Bearer internal-token"})
    return [(entry["lock_version"], entry["event"]["is"]) for entry in answer.json()["events"]]


async def killed_after(rig: Rig, requests: int, *, is_heard: bool) -> bool:
    """Run one second of a controller that is killed after so many requests; return False if it made fewer."""
    whole = rig.client
    rig.client = httpx.AsyncClient(
        transport=Cut(httpx.ASGITransport(rig.app), requests, is_heard=is_heard), base_url="http://registry"
    )
    controller = rig.controller()
    rig.client, cut = whole, rig.client
    rig.controllers = []
    await rig.second()
    try:
        await controller.step()
    except BaseExceptionGroup as group:
        assert group.subgroup(Killed) is not None
        return True
    except Killed:
        return True
    finally:
        await cut.aclose()
    return False


@pytest.mark.parametrize("is_heard", sampled([False, True], keep=[True]), ids=["before", "after"])
@pytest.mark.parametrize("is_bad", [False, True], ids=["good", "bad"])
async def test_rollout_survives_a_kill_at_every_request(rig: Rig, is_heard: bool, is_bad: bool) -> None:
    """The rollout ends as without kills, with a history without a gap.

    Each controller lives for less than a second and dies one request later than the one before. The next one begins
    from the copy on the disk.
    """
    await begun(rig)
    if is_bad:
        rig.gateway.behaviours["v2"] = Behaviour(error_ratio=0.3)
    requests = 0
    for _ in range(400):
        requests = requests + 1 if await killed_after(rig, requests, is_heard=is_heard) else 0
        rows = await rig.rollouts()
        for split in rig.bot.splits:
            assert split.rollout in {row.id for row in rows if row.loaded}
        if (
            rows
            and not rows[-1].is_active
            and rig.bot.channels == {"stable": rows[-1].from_version if is_bad else "v2"}
        ):
            break
    row = await only(rig)
    assert row.state == ("rolled_back" if is_bad else "completed")
    told = await history(rig, row.id)
    assert linear(told)
    assert [what for _, what in told] == (
        ["loaded", "breached"] if is_bad else ["loaded", "stage_passed", "stage_passed"]
    )


async def test_two_controllers_at_once_never_fork(rig: Rig) -> None:
    await begun(rig)
    rig.controller("one")
    both = [rig.controllers[0], rig.controller("two")]
    rig.controllers = []
    for _ in range(60):
        await rig.second()
        await asyncio.gather(*(controller.step() for controller in both))
        rows = await rig.rollouts()
        assert len([row for row in rows if row.is_active]) <= 1
        for split in rig.bot.splits:
            assert split.rollout in {row.id for row in rows}
    row = await only(rig)
    assert (row.state, rig.bot.channels) == ("completed", {"stable": "v2"})
    told = await history(rig, row.id)
    assert [what for _, what in told] == ["loaded", "stage_passed", "stage_passed"]
    assert linear(told)


async def test_two_controllers_with_different_targets_leave_one_active_rollout(rig: Rig) -> None:
    """One controller still reads an old revision: they alternate, and the channel is never in two rollouts."""
    await running(rig)
    for turn in range(20):
        rig.declared = fleet("v1", "v2", "v3", stable="v3" if turn % 2 else "v2")
        await rig.second()
        active = [row for row in await rig.rollouts() if row.is_active]
        assert len(active) == 1
        assert [split.rollout for split in rig.bot.splits] in ([], [active[0].id])


async def test_deposed_leader_changes_no_rollout(rig: Rig) -> None:
    row = await running(rig)
    old, new = Controller(rig, None, fence=3), Controller(rig, None, fence=4)
    for controller in (old, new):
        await controller.rows.fetch_changes()
    client = await new._rollout_client()
    after = await client.post_event(row.id, Command(Promoted("new"), row.lock_version))
    with pytest.raises(RowMoved, match="leadership"):
        await (await old._rollout_client()).post_event(row.id, Command(Promoted("old"), after.lock_version))
    assert (await only(rig)).reason == "promoted by new"


async def test_a_controller_that_starts_without_the_registry_changes_nothing(rig: Rig) -> None:
    row = await running(rig)
    before = rig.snapshot
    await rig.without_sql()
    controller = rig.controller()
    assert [known.id for known in controller.rows.book.active] == [row.id], "from its copy"
    outcome = await controller.step()
    assert outcome.kind == "unchanged"
    assert rig.snapshot.models == before.models
    rig.declared = fleet("v1", "v2", "v3", stable="v3")
    outcome = await controller.step()
    assert rig.bot.channels["stable"] == "v1", "nothing flips"
    assert outcome.held == ("acme/bot:stable stays v1 until the registry has the rollout to v3",)


async def test_controller_without_its_copy_publishes_nothing_until_the_registry_answers(rig: Rig) -> None:
    await running(rig)
    before = rig.snapshot
    await rig.without_sql()
    fresh = Controller(rig, rig.folder / "nothing-here.json")
    outcome = await fresh.step()
    assert outcome.kind == "unavailable"
    assert "without the registry's rows" in outcome.message
    assert rig.snapshot == before


async def test_registry_that_lost_its_rows_is_not_trusted(rig: Rig) -> None:
    row = await running(rig)
    before = rig.bot
    await rig.other_database()
    (controller,) = rig.controllers
    await controller.step()
    assert rig.bot == before, "held as it was"
    assert "another database" in controller.rows.contradiction
    outcome = await controller.publish()
    assert any("is not followed" in problem for problem in outcome.problems)
    assert [known.id for known in controller.rows.book.active] == [row.id]


async def test_unreadable_copy_is_set_aside(rig: Rig, tmp_path: Path) -> None:
    file = tmp_path / "rows-one.json"
    file.write_bytes(b"{half")
    controller = rig.controller()
    assert controller.rows.book.change == 0
    assert file.with_name("rows-one.json.refused").read_bytes() == b"{half"
    await rig.seconds(3)
    assert rig.bot.channels == {"stable": "v1"}
    assert file.exists()


async def test_rollback_is_published_while_declarations_are_suspended(rig: Rig) -> None:
    """The branch is suspended: it holds v3 by then, which is not applied."""
    row = await running(rig)
    (controller,) = rig.controllers
    rig.declared = fleet("v1", "v2", "v3", stable="v3", policies=())
    await rig.order(row.id, "rollback")
    await controller.rows.fetch_changes()
    outcome = await controller.follow_rows()
    assert (outcome.kind, rig.bot.splits, rig.bot.channels) == ("published", (), {"stable": "v1"})
    assert {one.name for one in rig.bot.versions} == {"v1", "v2"}
    assert (await controller.follow_rows()).kind == "unchanged"


async def test_rollback_is_published_while_an_artifact_store_hangs(rig: Rig) -> None:
    row = await running(rig)
    (controller,) = rig.controllers
    asked, answers = threading.Event(), threading.Event()

    def hanging(artifact_uri: str) -> Digest:
        asked.set()
        assert answers.wait(120)
        return digest_of(artifact_uri)

    rig.read_digest = hanging
    publishing = asyncio.create_task(controller.publish())
    try:
        assert await asyncio.to_thread(asked.wait, 120)
        await rig.order(row.id, "rollback")
        await controller.rows.fetch_changes()
        assert (await controller.follow_rows()).kind == "published"
        assert rig.bot.splits == ()
        assert not publishing.done()
    finally:
        answers.set()
    await publishing
    assert rig.bot.splits == ()


@pytest.mark.parametrize("way", ["publish", "follow_rows"])
async def test_copy_from_before_a_rollback_does_not_restore_the_bad_version(rig: Rig, way: str) -> None:
    """One controller is killed, another one leads and rolls the version back, and the first starts again."""
    row = await running(rig)
    controller = rig.controller("two")
    await controller.step()
    await rig.order(row.id, "rollback")
    await controller.step()
    assert rig.bot.splits == ()
    again = rig.controller()
    assert again.rows.book.rows.latest[ModelId(BOT), "stable"].state == "running"
    await getattr(again, way)()
    assert rig.bot.splits == ()
    assert again.rows.book.rows.latest[ModelId(BOT), "stable"].state == "rolled_back"


async def test_copy_moves_no_channel_without_sql(rig: Rig) -> None:
    await running(rig)
    again = rig.controller()
    await rig.without_sql()
    before = rig.snapshot
    outcome = await again.follow_rows()
    assert (outcome.kind, rig.snapshot) == ("unavailable", before)


async def test_restored_registry_that_caught_up_is_read_completely(rig: Rig) -> None:
    """The registry counts on from the backup: new writes with numbers below the known one must still be read."""
    row = await running(rig)
    (controller,) = rig.controllers
    await controller.step()
    known = replace(controller.rows.book, change=controller.rows.book.change + 1)
    controller.rows.book = known  # as if one more change had been written, which the backup lacks
    assert not await controller.rows.fetch_changes()
    assert "a restored backup?" in controller.rows.contradiction
    assert not await controller.rows.fetch_changes(), "it stays so until it has caught up"
    await rig.order(row.id, "rollback")  # in place of the lost change
    assert await controller.rows.fetch_changes()
    assert controller.rows.contradiction == ""
    assert controller.rows.book.rows.latest[ModelId(BOT), "stable"].state == "rolled_back"
    await controller.publish()
    assert rig.bot.splits == ()
