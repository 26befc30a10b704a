"""The follower: verified before believed, kept before used, and what is in hand stays whatever comes.

The registry here is a scripted ASGI app, since it must lie in ways that the real one cannot; the real one meets the
follower in tests/registry.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from functions.api import snapshot as snapshots
from functions.api.ids import PoolName, TenantId
from functions.api.snapshot import Snapshot, TenantEntry
from functions.api.snapshot_document import delta_lines
from functions.api.snapshot_index import changes_between, indexed
from functions.decisions.catalogue import Catalogue
from functions.fleet import snapshot_file
from functions.fleet import snapshots as followers
from functions.fleet.snapshot_notices import SnapshotNotice
from functions.fleet.snapshots import SnapshotFollower, SnapshotRefused, SnapshotSourceUnavailable
from tests.fleet.builders import snapshot

Script = Callable[[Request], Response]


class World:
    """One follower and the registry that it asks."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[Request] = []
        self.swapped: list[Catalogue] = []
        self.answer: Script = lambda _: Response(status_code=204)
        self.now_unix_s = 1000.0
        self.cache_file = folder / "cache" / "snapshot.json"
        self.hangs = False
        self.follower = self.new_follower()

    def new_follower(self, **changes: Any) -> SnapshotFollower:
        return SnapshotFollower(
            client=httpx.AsyncClient(transport=httpx.ASGITransport(self._app)),
            registry_url="http://registry/",
            token="secret",
            cache_file=self.cache_file,
            on_swap=self.swapped.append,
            wall_clock=lambda: self.now_unix_s,
            **changes,
        )

    def serves(self, it: Snapshot, **changes: Any) -> None:
        document = changes.get("document", snapshots.encode(it))
        named = changes.get("named", snapshots.content_hash(it))
        self.answer = lambda _: Response(document, headers={followers.HASH_HEADER: named})

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        self.asked.append(request)
        if self.hangs:
            await asyncio.sleep(60)
        await self.answer(request)(scope, receive, send)


def kept(world: World) -> Snapshot:
    content = snapshot_file.read(world.cache_file)
    assert content is not None
    return content.snapshot


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "_MIN_POLL_INTERVAL_S", 0.0)


async def test_a_new_snapshot_is_kept_then_used(world: World) -> None:
    world.serves(snapshot(epoch=4))
    assert await world.follower.poll() is True
    assert [it.epoch for it in world.swapped] == [4]
    assert world.follower.current is world.swapped[0]
    assert kept(world) == snapshot(epoch=4)


async def test_it_asks_for_what_is_after_its_own_and_shows_its_token(world: World) -> None:
    world.serves(snapshot(epoch=4))
    await world.follower.poll()
    world.answer = lambda _: Response(status_code=204)
    assert await world.follower.poll() is False
    first, second = world.asked
    assert (first.url.path, first.query_params["after"], second.query_params["after"]) == ("/v1/snapshot", "0", "4")
    assert first.query_params["wait_s"] == "25.0"
    assert first.headers["authorization"] == "Bearer secret"


async def test_a_cold_start_needs_no_registry(world: World) -> None:
    snapshot_file.write(world.cache_file, snapshots.encode(snapshot(epoch=9)))
    assert world.follower.load_cached() is True
    assert [it.epoch for it in world.swapped] == [9]
    assert world.swapped[0].snapshot_hash == snapshots.content_hash(snapshot())
    assert world.asked == []
    os.utime(world.cache_file, (world.now_unix_s - 7.0, world.now_unix_s - 7.0))
    assert world.follower.load_cached() is True
    assert world.follower.age_s() == 7.0, "when the registry vouched for it last, the file's time says"


async def test_a_restart_does_not_make_a_snapshot_younger(world: World) -> None:
    """Else keys that were revoked meanwhile live for as long as restarts come before the bound."""
    snapshot_file.write(world.cache_file, snapshots.encode(snapshot(epoch=9)))
    os.utime(world.cache_file, (1.0, 1.0))
    world.follower.load_cached()
    world.answer = lambda _: Response(status_code=204)
    assert await world.follower.poll() is False
    confirmed_unix_s = world.now_unix_s
    world.now_unix_s += 59.0
    await world.follower.poll()
    assert world.cache_file.stat().st_mtime == confirmed_unix_s, "kept once a minute"
    world.now_unix_s += 1.0
    await world.follower.poll()
    assert world.cache_file.stat().st_mtime == world.now_unix_s


def test_without_a_cache_there_is_nothing_to_start_from(world: World) -> None:
    assert world.follower.load_cached() is False
    assert world.swapped == []


def test_a_broken_cache_is_reported_and_not_used(world: World) -> None:
    world.cache_file.parent.mkdir()
    world.cache_file.write_bytes(b"{")
    assert world.follower.load_cached() is False
    assert "the cached snapshot is not used" in world.follower.last_problem
    assert world.follower.refused_total == 1


LIES: list[tuple[str, dict[str, Any], str]] = [
    ("another name", {"named": "sha256:" + "0" * 64}, "its content is sha256:"),
    ("no name", {"named": ""}, "says nothing"),
    ("torn", {"document": snapshots.encode(snapshot(epoch=5))[:-10]}, "not a snapshot"),
    ("not JSON", {"document": b"<html>"}, "not a snapshot"),
    ("not the content named", {"document": snapshots.encode(snapshot(epoch=5, pools=()))}, "not in the snapshot"),
]


@pytest.mark.parametrize(("lie", "says"), [case[1:] for case in LIES], ids=[case[0] for case in LIES])
async def test_what_cannot_be_believed_is_refused_and_the_old_one_stays(
    world: World, lie: dict[str, Any], says: str
) -> None:
    world.serves(snapshot(epoch=4))
    await world.follower.poll()
    world.serves(snapshot(epoch=5), **lie)
    with pytest.raises(SnapshotRefused, match=says):
        await world.follower.poll()
    assert [it.epoch for it in world.swapped] == [4]
    assert kept(world) == snapshot(epoch=4)
    assert world.follower.refused_total == 1
    assert says in world.follower.last_problem


@pytest.mark.parametrize("epoch", [3, 4])
async def test_epochs_only_grow(world: World, epoch: int) -> None:
    world.serves(snapshot(epoch=4))
    await world.follower.poll()
    other = snapshot(epoch=epoch, tenants=(TenantEntry(TenantId("acme"), "other", ()),))
    world.serves(other)
    with pytest.raises(SnapshotRefused, match=f"its epoch {epoch} is not after ours, 4"):
        await world.follower.poll()


@pytest.mark.parametrize("status", [401, 404, 500, 503, 301])
async def test_a_registry_that_does_not_serve_is_told_with_its_words(world: World, status: int) -> None:
    world.answer = lambda _: Response(b"the reason " + b"x" * 10_000, status)
    with pytest.raises(SnapshotSourceUnavailable, match=f"answered {status}: the reason") as caught:
        await world.follower.poll()
    assert len(str(caught.value)) < 500


async def test_a_registry_that_is_away_is_unavailable(tmp_path: Path) -> None:
    async with httpx.AsyncClient() as client:
        follower = SnapshotFollower(
            client=client,
            registry_url="http://127.0.0.1:1",
            token="t",
            cache_file=tmp_path / "s.json",
            on_swap=lambda _: None,
        )
        with pytest.raises(SnapshotSourceUnavailable, match="cannot be read"):
            await follower.run()


async def test_an_endless_document_is_cut_off(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "SNAPSHOT_MAX_BYTES", 1000)
    world.answer = lambda _: Response(b" " * 5000)
    with pytest.raises(SnapshotSourceUnavailable, match="over 1000 bytes"):
        await world.follower.poll()


async def test_a_full_disk_does_not_keep_a_good_snapshot_from_use(world: World) -> None:
    world.cache_file.parent.write_text("a file where the folder should be")
    world.serves(snapshot(epoch=4))
    assert await world.follower.poll() is True
    assert [it.epoch for it in world.swapped] == [4]
    assert "could not be kept" in world.follower.last_problem


async def test_the_age_is_the_time_since_the_registry_vouched(world: World) -> None:
    world.serves(snapshot(epoch=4))
    await world.follower.poll()
    world.now_unix_s += 30.0
    assert world.follower.age_s() == 30.0
    world.answer = lambda _: Response(status_code=204)
    await world.follower.poll()
    assert world.follower.age_s() == 0.0


async def test_running_goes_on_until_the_registry_fails(world: World) -> None:
    script = [snapshot(epoch=1), None, snapshot(epoch=2)]

    def answer(_: Request) -> Response:
        if not script:
            return Response(status_code=503)
        it = script.pop(0)
        if it is None:
            return Response(status_code=204)
        return Response(snapshots.encode(it), headers={followers.HASH_HEADER: snapshots.content_hash(it)})

    world.answer = answer
    with pytest.raises(SnapshotSourceUnavailable):
        await world.follower.run()
    assert [it.epoch for it in world.swapped] == [1, 2]


# -- deltas -----------------------------------------------------------------------------------------------------------


def with_tier(epoch: int, tier: str) -> Snapshot:
    return snapshot(epoch=epoch, tenants=(TenantEntry(TenantId("acme"), tier, ()),))


def serve_delta(world: World, old: Snapshot, new: Snapshot, named: str = "") -> None:
    before, after = indexed(old), indexed(new)
    document = b"".join(delta_lines(new, before.content_hash, changes_between(before, after)))
    headers = {followers.HASH_HEADER: named or after.content_hash}
    world.answer = lambda _: Response(document, headers=headers)


async def test_it_names_what_it_holds_and_takes_what_changed(world: World) -> None:
    world.serves(with_tier(1, "a"))
    await world.follower.poll()
    serve_delta(world, with_tier(1, "a"), with_tier(2, "b"))
    assert await world.follower.poll() is True
    assert followers.BASE_HEADER not in world.asked[0].headers
    assert world.asked[1].headers[followers.BASE_HEADER] == snapshots.content_hash(with_tier(1, "a"))
    assert world.swapped[-1].snapshot == with_tier(2, "b")
    assert world.swapped[-1].models["acme/bot"] is world.swapped[0].models["acme/bot"]  # type: ignore[index]
    assert kept(world) == with_tier(2, "b")


async def test_the_same_content_under_a_later_epoch_is_taken(world: World) -> None:
    world.serves(with_tier(1, "a"))
    await world.follower.poll()
    serve_delta(world, with_tier(1, "a"), with_tier(9, "a"))
    assert await world.follower.poll() is True
    assert world.swapped[-1].epoch == 9
    assert kept(world).epoch == 9


@pytest.mark.parametrize("lie", ["for another base", "not the content named", "torn"])
async def test_after_a_delta_that_cannot_be_used_the_whole_is_asked_for(world: World, lie: str) -> None:
    world.serves(with_tier(1, "a"))
    await world.follower.poll()
    if lie == "for another base":
        serve_delta(world, with_tier(1, "z"), with_tier(2, "b"))
    elif lie == "not the content named":
        serve_delta(world, with_tier(1, "a"), with_tier(2, "b"), named="sha256:" + "0" * 64)
    else:
        world.answer = lambda _: Response(b'{"is":"snap', headers={followers.HASH_HEADER: "sha256:x"})
    with pytest.raises(SnapshotRefused):
        await world.follower.poll()
    assert world.follower.current is world.swapped[0]
    world.serves(with_tier(2, "b"))
    assert await world.follower.poll() is True
    assert followers.BASE_HEADER not in world.asked[-1].headers
    assert (world.follower.refused_total, world.follower.last_problem) == (1, "")


async def test_a_later_start_takes_up_the_deltas_too(world: World, tmp_path: Path) -> None:
    world.serves(with_tier(1, "a"))
    await world.follower.poll()
    serve_delta(world, with_tier(1, "a"), with_tier(2, "b"))
    await world.follower.poll()
    again = World(tmp_path)
    assert again.follower.load_cached() is True
    assert again.swapped[0].snapshot == with_tier(2, "b")


# -- one pool, and news on the bus ------------------------------------------------------------------------------------


async def test_an_agent_asks_for_its_pool_and_hears_how_far_it_holds(world: World, tmp_path: Path) -> None:
    confirmed: list[int] = []
    world.follower = world.new_follower(pool=PoolName("base"), on_confirmed=confirmed.append)
    world.serves(snapshot(epoch=4))
    await world.follower.poll()
    world.answer = lambda _: Response(status_code=204, headers={followers.EPOCH_HEADER: "9"})
    await world.follower.poll()
    assert [request.query_params["pool"] for request in world.asked] == ["base", "base"]
    assert world.asked[1].query_params["after"] == "4"
    assert confirmed == [4, 9]


@pytest.mark.parametrize("epoch", ["", "x", "-3", "9" * 50])
async def test_an_odd_epoch_beside_a_204_is_no_harm(world: World, epoch: str) -> None:
    confirmed: list[int] = []
    world.follower = world.new_follower(on_confirmed=confirmed.append)
    world.answer = lambda _: Response(status_code=204, headers={followers.EPOCH_HEADER: epoch})
    assert await world.follower.poll() is False
    assert confirmed == [0]


async def until_asked(world: World, times: int) -> None:
    async with asyncio.timeout(20):
        while len(world.asked) < times:
            await asyncio.sleep(0.005)


async def test_news_of_something_later_begins_the_poll_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "NEWS_GRACE_S", 0.0)
    world.hangs = True
    polling = asyncio.create_task(world.follower.poll())
    await until_asked(world, 1)
    world.follower.heard(SnapshotNotice(epoch=3))
    async with asyncio.timeout(20):
        assert await polling is False, "nothing came, and it may be asked again"


async def test_more_news_does_not_put_the_next_poll_off(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "NEWS_GRACE_S", 1.0)
    world.hangs = True
    polling = asyncio.create_task(world.follower.poll())
    await until_asked(world, 1)
    async with asyncio.timeout(20):
        while not polling.done():
            world.follower.heard(SnapshotNotice(epoch=3))
            await asyncio.sleep(0.01)
    assert await polling is False


async def test_news_while_a_poll_is_being_given_up_is_no_failure(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "NEWS_GRACE_S", 0.0)
    given_up = asyncio.Event()

    async def reluctant(scope: Any, receive: Any, send: Any) -> None:
        try:
            world.asked.append(Request(scope, receive))
            await asyncio.Event().wait()
        finally:
            given_up.set()
            await asyncio.sleep(0.05)

    monkeypatch.setattr(world, "_app", reluctant)
    world.follower = world.new_follower()
    polling = asyncio.create_task(world.follower.poll())
    await until_asked(world, 1)
    world.follower.heard(SnapshotNotice(epoch=3))
    await given_up.wait()
    world.follower.heard(SnapshotNotice(epoch=4))
    async with asyncio.timeout(20):
        assert await polling is False


@pytest.mark.parametrize(
    ("news", "why"),
    [
        (SnapshotNotice(epoch=4), "it has that"),
        (SnapshotNotice(epoch=5, pools=("other",)), "no business of this pool"),
        (SnapshotNotice(epoch=5, pools=()), "no business of any pool"),
    ],
)
async def test_news_that_does_not_concern_it_disturbs_no_poll(
    world: World, monkeypatch: pytest.MonkeyPatch, news: SnapshotNotice, why: str
) -> None:
    monkeypatch.setattr(followers, "NEWS_GRACE_S", 0.0)
    world.follower = world.new_follower(pool=PoolName("base"))
    world.serves(snapshot(epoch=4))
    await world.follower.poll()
    world.hangs = True
    polling = asyncio.create_task(world.follower.poll())
    await until_asked(world, 2)
    world.follower.heard(news)
    await asyncio.sleep(0.1)
    assert not polling.done(), why
    polling.cancel()


async def test_a_gateway_names_itself_and_hears_how_many_there_are(world: World) -> None:
    heard: list[int] = []
    follower = world.new_follower(gateway_id="gateway-7", on_gateways=heard.append)
    for said in ("6", "", "-1", "many", "0", "1000000"):
        headers = {followers.GATEWAYS_HEADER: said} if said else {}
        world.answer = lambda _, headers=headers: Response(status_code=204, headers=headers)  # type: ignore[misc]
        await follower.poll()
    assert heard == [6]
    assert {request.headers[followers.GATEWAY_HEADER] for request in world.asked} == {"gateway-7"}
    await world.follower.poll()
    assert followers.GATEWAY_HEADER not in world.asked[-1].headers, "an agent is no gateway"
