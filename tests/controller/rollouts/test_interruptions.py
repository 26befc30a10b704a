"""Controllers that are killed, doubled or cut off: a rollout goes on or goes back, and never forks."""

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
from tests.controller.rollouts.test_control_loop import begun, only, running
from tests.controller.rollouts.world import BOT, Behaviour, Controller, World, digest_of, fleet
from tests.soak import sampled


class Killed(BaseException):
    """The process is gone: nothing after this line runs."""


class Cut(httpx.AsyncBaseTransport):
    """Lets a number of requests through, then kills the caller: before the registry hears of one, or after."""

    def __init__(self, inner: httpx.AsyncBaseTransport, requests: int, *, is_heard: bool) -> None:
        self._inner, self._left, self._is_heard = inner, requests, is_heard

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._left > 0:
            self._left -= 1
            return await self._inner.handle_async_request(request)
        if self._is_heard:
            await (await self._inner.handle_async_request(request)).aread()
        raise Killed


def linear(world_rows: list[tuple[int, str]]) -> bool:
    versions = [version for version, _ in world_rows]
    return versions == sorted(set(versions))


async def history(world: World, rollout: str) -> list[tuple[int, str]]:
    answer = await world.client.get(f"/v1/rollouts/{rollout}", headers={"authorization": "Bearer internal-token"})
    return [(entry["lock_version"], entry["event"]["is"]) for entry in answer.json()["events"]]


async def killed_after(world: World, requests: int, *, is_heard: bool) -> bool:
    """One second of a controller that is killed at its so-manieth request; False where it made fewer."""
    whole = world.client
    world.client = httpx.AsyncClient(
        transport=Cut(httpx.ASGITransport(world.app), requests, is_heard=is_heard), base_url="http://registry"
    )
    controller = world.controller()
    world.client, cut = whole, world.client
    world.controllers = []
    await world.second()
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
async def test_killed_at_every_request_of_every_second(world: World, is_heard: bool, is_bad: bool) -> None:
    """Each controller lives for less than a second, dies one request later than the one before, and the next begins
    from the copy on the disk. The rollout ends as it would have, by a history without a gap."""
    await begun(world)
    if is_bad:
        world.gateway.behaviours["v2"] = Behaviour(error_ratio=0.3)
    requests = 0
    for _ in range(400):
        requests = requests + 1 if await killed_after(world, requests, is_heard=is_heard) else 0
        rows = await world.rollouts()
        for split in world.bot.splits:
            assert split.rollout in {row.id for row in rows if row.loaded}
        if (
            rows
            and not rows[-1].is_active
            and world.bot.channels == {"stable": rows[-1].from_version if is_bad else "v2"}
        ):
            break
    row = await only(world)
    assert row.state == ("rolled_back" if is_bad else "completed")
    told = await history(world, row.id)
    assert linear(told)
    assert [what for _, what in told] == (
        ["loaded", "breached"] if is_bad else ["loaded", "stage_passed", "stage_passed"]
    )


async def test_two_controllers_at_once_never_fork(world: World) -> None:
    await begun(world)
    world.controller("one")
    both = [world.controllers[0], world.controller("two")]
    world.controllers = []
    for _ in range(60):
        await world.second()
        await asyncio.gather(*(controller.step() for controller in both))
        rows = await world.rollouts()
        assert len([row for row in rows if row.is_active]) <= 1
        for split in world.bot.splits:
            assert split.rollout in {row.id for row in rows}
    row = await only(world)
    assert (row.state, world.bot.channels) == ("completed", {"stable": "v2"})
    told = await history(world, row.id)
    assert [what for _, what in told] == ["loaded", "stage_passed", "stage_passed"]
    assert linear(told)


async def test_two_that_want_different_things_leave_one_rollout_active(world: World) -> None:
    """One still reads an old revision: they take turns, and the channel is never in two rollouts."""
    await running(world)
    for turn in range(20):
        world.declared = fleet("v1", "v2", "v3", stable="v3" if turn % 2 else "v2")
        await world.second()
        active = [row for row in await world.rollouts() if row.is_active]
        assert len(active) == 1
        assert [split.rollout for split in world.bot.splits] in ([], [active[0].id])


async def test_a_leader_that_was_deposed_changes_no_rollout(world: World) -> None:
    row = await running(world)
    old, new = Controller(world, None, fence=3), Controller(world, None, fence=4)
    for controller in (old, new):
        await controller.rows.look()
    client = await new._rollout_client()
    after = await client.post_event(row.id, Command(Promoted("new"), row.lock_version))
    with pytest.raises(RowMoved, match="leadership"):
        await (await old._rollout_client()).post_event(row.id, Command(Promoted("old"), after.lock_version))
    assert (await only(world)).reason == "promoted by new"


async def test_a_controller_that_starts_without_the_registry_changes_nothing(world: World) -> None:
    row = await running(world)
    before = world.snapshot
    await world.without_sql()
    controller = world.controller()
    assert [known.id for known in controller.rows.book.active] == [row.id], "from its copy"
    outcome = await controller.step()
    assert outcome.kind == "unchanged"
    assert world.snapshot.models == before.models
    world.declared = fleet("v1", "v2", "v3", stable="v3")
    outcome = await controller.step()
    assert world.bot.channels["stable"] == "v1", "nothing flips"
    assert outcome.held == ("acme/bot:stable stays v1 until the registry has the rollout to v3",)


async def test_without_its_copy_it_publishes_nothing_until_the_registry_tells(world: World) -> None:
    await running(world)
    before = world.snapshot
    await world.without_sql()
    fresh = Controller(world, world.folder / "nothing-here.json")
    outcome = await fresh.step()
    assert outcome.kind == "unavailable"
    assert "without the registry's rows" in outcome.message
    assert world.snapshot == before


async def test_a_registry_that_lost_its_rows_is_not_believed(world: World) -> None:
    row = await running(world)
    before = world.bot
    await world.other_database()
    (controller,) = world.controllers
    await controller.step()
    assert world.bot == before, "held as it was"
    assert "another database" in controller.rows.contradiction
    outcome = await controller.publish()
    assert any("is not followed" in problem for problem in outcome.problems)
    assert [known.id for known in controller.rows.book.active] == [row.id]


async def test_a_copy_that_cannot_be_read_is_set_aside(world: World, tmp_path: Path) -> None:
    file = tmp_path / "rows-one.json"
    file.write_bytes(b"{half")
    controller = world.controller()
    assert controller.rows.book.change == 0
    assert file.with_name("rows-one.json.refused").read_bytes() == b"{half"
    await world.seconds(3)
    assert world.bot.channels == {"stable": "v1"}
    assert file.exists()


async def test_it_is_taken_back_although_nothing_that_is_declared_may_be_published(world: World) -> None:
    """Suspended: the branch says v3 meanwhile, and stays unheard."""
    row = await running(world)
    (controller,) = world.controllers
    world.declared = fleet("v1", "v2", "v3", stable="v3", policies=())
    await world.order(row.id, "rollback")
    await controller.rows.look()
    outcome = await controller.follow_rows()
    assert (outcome.kind, world.bot.splits, world.bot.channels) == ("published", (), {"stable": "v1"})
    assert {one.name for one in world.bot.versions} == {"v1", "v2"}
    assert (await controller.follow_rows()).kind == "unchanged"


async def test_it_is_taken_back_while_an_artifact_store_hangs(world: World) -> None:
    row = await running(world)
    (controller,) = world.controllers
    asked, answers = threading.Event(), threading.Event()

    def hanging(artifact_uri: str) -> Digest:
        asked.set()
        assert answers.wait(120)
        return digest_of(artifact_uri)

    world.read_digest = hanging
    publishing = asyncio.create_task(controller.publish())
    try:
        assert await asyncio.to_thread(asked.wait, 120)
        await world.order(row.id, "rollback")
        await controller.rows.look()
        assert (await controller.follow_rows()).kind == "published"
        assert world.bot.splits == ()
        assert not publishing.done()
    finally:
        answers.set()
    await publishing
    assert world.bot.splits == ()


@pytest.mark.parametrize("way", ["publish", "follow_rows"])
async def test_a_copy_from_before_a_rollback_sends_nobody_to_the_bad_version(world: World, way: str) -> None:
    """One controller is killed, another one leads and takes the version back, and the first starts again."""
    row = await running(world)
    controller = world.controller("two")
    await controller.step()
    await world.order(row.id, "rollback")
    await controller.step()
    assert world.bot.splits == ()
    again = world.controller()
    assert again.rows.book.rows.latest[ModelId(BOT), "stable"].state == "running"
    await getattr(again, way)()
    assert world.bot.splits == ()
    assert again.rows.book.rows.latest[ModelId(BOT), "stable"].state == "rolled_back"


async def test_without_sql_a_copy_moves_no_channel(world: World) -> None:
    await running(world)
    again = world.controller()
    await world.without_sql()
    before = world.snapshot
    outcome = await again.follow_rows()
    assert (outcome.kind, world.snapshot) == ("unavailable", before)


async def test_a_restored_registry_that_caught_up_is_read_anew(world: World) -> None:
    """It counts on from the backup: what was written there is partly below what was known, and must be heard."""
    row = await running(world)
    (controller,) = world.controllers
    await controller.step()
    known = replace(controller.rows.book, change=controller.rows.book.change + 1)
    controller.rows.book = known  # as if one more had been written, which the backup does not have
    assert not await controller.rows.look()
    assert "a restored backup?" in controller.rows.contradiction
    assert not await controller.rows.look(), "it stays so until it has caught up"
    await world.order(row.id, "rollback")  # in place of what was lost
    assert await controller.rows.look()
    assert controller.rows.contradiction == ""
    assert controller.rows.book.rows.latest[ModelId(BOT), "stable"].state == "rolled_back"
    await controller.publish()
    assert world.bot.splits == ()
