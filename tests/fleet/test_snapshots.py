"""The snapshot follower verifies before it accepts, stores before it uses, and keeps the last good snapshot.

The registry here is a scripted ASGI app that sends wrong answers; tests/registry tests the follower with the real one.
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


class Rig:
    """One follower and its scripted registry."""

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


def stored_snapshot(rig: Rig) -> Snapshot:
    content = snapshot_file.read(rig.cache_file)
    assert content is not None
    return content.snapshot


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "_MIN_POLL_INTERVAL_S", 0.0)


async def test_new_snapshot_is_stored_then_used(rig: Rig) -> None:
    rig.serves(snapshot(epoch=4))
    assert await rig.follower.poll() is True
    assert [it.epoch for it in rig.swapped] == [4]
    assert rig.follower.current is rig.swapped[0]
    assert stored_snapshot(rig) == snapshot(epoch=4)


async def test_it_asks_for_what_is_after_its_own_and_shows_its_token(rig: Rig) -> None:
    rig.serves(snapshot(epoch=4))
    await rig.follower.poll()
    rig.answer = lambda _: Response(status_code=204)
    assert await rig.follower.poll() is False
    first, second = rig.asked
    assert (first.url.path, first.query_params["after"], second.query_params["after"]) == ("/v1/snapshot", "0", "4")
    assert first.query_params["wait_s"] == "25.0"
    assert first.headers["authorization"] == "Bearer secret"


async def test_a_cold_start_needs_no_registry(rig: Rig) -> None:
    snapshot_file.write(rig.cache_file, snapshots.encode(snapshot(epoch=9)))
    assert rig.follower.load_cached() is True
    assert [it.epoch for it in rig.swapped] == [9]
    assert rig.swapped[0].snapshot_hash == snapshots.content_hash(snapshot())
    assert rig.asked == []
    os.utime(rig.cache_file, (rig.now_unix_s - 7.0, rig.now_unix_s - 7.0))
    assert rig.follower.load_cached() is True
    assert rig.follower.age_s() == 7.0, "when the registry vouched for it last, the file's time says"


async def test_a_restart_does_not_make_a_snapshot_younger(rig: Rig) -> None:
    """Otherwise frequent restarts would keep revoked keys valid without limit."""
    snapshot_file.write(rig.cache_file, snapshots.encode(snapshot(epoch=9)))
    os.utime(rig.cache_file, (1.0, 1.0))
    rig.follower.load_cached()
    rig.answer = lambda _: Response(status_code=204)
    assert await rig.follower.poll() is False
    confirmed_unix_s = rig.now_unix_s
    rig.now_unix_s += 59.0
    await rig.follower.poll()
    assert rig.cache_file.stat().st_mtime == confirmed_unix_s, "kept once a minute"
    rig.now_unix_s += 1.0
    await rig.follower.poll()
    assert rig.cache_file.stat().st_mtime == rig.now_unix_s


def test_without_a_cache_there_is_nothing_to_start_from(rig: Rig) -> None:
    assert rig.follower.load_cached() is False
    assert rig.swapped == []


def test_a_broken_cache_is_reported_and_not_used(rig: Rig) -> None:
    rig.cache_file.parent.mkdir()
    rig.cache_file.write_bytes(b"{")
    assert rig.follower.load_cached() is False
    assert "the cached snapshot is not used" in rig.follower.last_problem
    assert rig.follower.refused_total == 1


LIES: list[tuple[str, dict[str, Any], str]] = [
    ("another name", {"named": "sha256:" + "0" * 64}, "its content is sha256:"),
    ("no name", {"named": ""}, "says nothing"),
    ("torn", {"document": snapshots.encode(snapshot(epoch=5))[:-10]}, "not a snapshot"),
    ("not JSON", {"document": b"<html>"}, "not a snapshot"),
    ("not the content named", {"document": snapshots.encode(snapshot(epoch=5, pools=()))}, "not in the snapshot"),
]


@pytest.mark.parametrize(("lie", "says"), [case[1:] for case in LIES], ids=[case[0] for case in LIES])
async def test_unverified_snapshot_is_refused_and_the_old_one_stays(rig: Rig, lie: dict[str, Any], says: str) -> None:
    rig.serves(snapshot(epoch=4))
    await rig.follower.poll()
    rig.serves(snapshot(epoch=5), **lie)
    with pytest.raises(SnapshotRefused, match=says):
        await rig.follower.poll()
    assert [it.epoch for it in rig.swapped] == [4]
    assert stored_snapshot(rig) == snapshot(epoch=4)
    assert rig.follower.refused_total == 1
    assert says in rig.follower.last_problem


@pytest.mark.parametrize("epoch", [3, 4])
async def test_epochs_only_grow(rig: Rig, epoch: int) -> None:
    rig.serves(snapshot(epoch=4))
    await rig.follower.poll()
    other = snapshot(epoch=epoch, tenants=(TenantEntry(TenantId("acme"), "other", ()),))
    rig.serves(other)
    with pytest.raises(SnapshotRefused, match=f"its epoch {epoch} is not after ours, 4"):
        await rig.follower.poll()


@pytest.mark.parametrize("status", [401, 404, 500, 503, 301])
async def test_registry_error_is_reported_with_its_message(rig: Rig, status: int) -> None:
    rig.answer = lambda _: Response(b"the reason " + b"x" * 10_000, status)
    with pytest.raises(SnapshotSourceUnavailable, match=f"answered {status}: the reason") as caught:
        await rig.follower.poll()
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


async def test_an_endless_document_is_cut_off(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "SNAPSHOT_MAX_BYTES", 1000)
    rig.answer = lambda _: Response(b" " * 5000)
    with pytest.raises(SnapshotSourceUnavailable, match="over 1000 bytes"):
        await rig.follower.poll()


async def test_a_full_disk_does_not_keep_a_good_snapshot_from_use(rig: Rig) -> None:
    rig.cache_file.parent.write_text("a file where the folder should be")
    rig.serves(snapshot(epoch=4))
    assert await rig.follower.poll() is True
    assert [it.epoch for it in rig.swapped] == [4]
    assert "could not be stored" in rig.follower.last_problem


async def test_the_age_is_the_time_since_the_registry_vouched(rig: Rig) -> None:
    rig.serves(snapshot(epoch=4))
    await rig.follower.poll()
    rig.now_unix_s += 30.0
    assert rig.follower.age_s() == 30.0
    rig.answer = lambda _: Response(status_code=204)
    await rig.follower.poll()
    assert rig.follower.age_s() == 0.0


async def test_running_goes_on_until_the_registry_fails(rig: Rig) -> None:
    script = [snapshot(epoch=1), None, snapshot(epoch=2)]

    def answer(_: Request) -> Response:
        if not script:
            return Response(status_code=503)
        it = script.pop(0)
        if it is None:
            return Response(status_code=204)
        return Response(snapshots.encode(it), headers={followers.HASH_HEADER: snapshots.content_hash(it)})

    rig.answer = answer
    with pytest.raises(SnapshotSourceUnavailable):
        await rig.follower.run()
    assert [it.epoch for it in rig.swapped] == [1, 2]


# -- deltas -----------------------------------------------------------------------------------------------------------


def with_tier(epoch: int, tier: str) -> Snapshot:
    return snapshot(epoch=epoch, tenants=(TenantEntry(TenantId("acme"), tier, ()),))


def serve_delta(rig: Rig, old: Snapshot, new: Snapshot, named: str = "") -> None:
    before, after = indexed(old), indexed(new)
    document = b"".join(delta_lines(new, before.content_hash, changes_between(before, after)))
    headers = {followers.HASH_HEADER: named or after.content_hash}
    rig.answer = lambda _: Response(document, headers=headers)


async def test_follower_names_its_snapshot_and_applies_the_delta(rig: Rig) -> None:
    rig.serves(with_tier(1, "a"))
    await rig.follower.poll()
    serve_delta(rig, with_tier(1, "a"), with_tier(2, "b"))
    assert await rig.follower.poll() is True
    assert followers.BASE_HEADER not in rig.asked[0].headers
    assert rig.asked[1].headers[followers.BASE_HEADER] == snapshots.content_hash(with_tier(1, "a"))
    assert rig.swapped[-1].snapshot == with_tier(2, "b")
    assert rig.swapped[-1].models["acme/bot"] is rig.swapped[0].models["acme/bot"]  # type: ignore[index]
    assert stored_snapshot(rig) == with_tier(2, "b")


async def test_the_same_content_under_a_later_epoch_is_taken(rig: Rig) -> None:
    rig.serves(with_tier(1, "a"))
    await rig.follower.poll()
    serve_delta(rig, with_tier(1, "a"), with_tier(9, "a"))
    assert await rig.follower.poll() is True
    assert rig.swapped[-1].epoch == 9
    assert stored_snapshot(rig).epoch == 9


@pytest.mark.parametrize("lie", ["for another base", "not the content named", "torn"])
async def test_unusable_delta_is_followed_by_a_full_request(rig: Rig, lie: str) -> None:
    rig.serves(with_tier(1, "a"))
    await rig.follower.poll()
    if lie == "for another base":
        serve_delta(rig, with_tier(1, "z"), with_tier(2, "b"))
    elif lie == "not the content named":
        serve_delta(rig, with_tier(1, "a"), with_tier(2, "b"), named="sha256:" + "0" * 64)
    else:
        rig.answer = lambda _: Response(b'{"is":"snap', headers={followers.HASH_HEADER: "sha256:x"})
    with pytest.raises(SnapshotRefused):
        await rig.follower.poll()
    assert rig.follower.current is rig.swapped[0]
    rig.serves(with_tier(2, "b"))
    assert await rig.follower.poll() is True
    assert followers.BASE_HEADER not in rig.asked[-1].headers
    assert (rig.follower.refused_total, rig.follower.last_problem) == (1, "")


async def test_restart_applies_stored_deltas(rig: Rig, tmp_path: Path) -> None:
    rig.serves(with_tier(1, "a"))
    await rig.follower.poll()
    serve_delta(rig, with_tier(1, "a"), with_tier(2, "b"))
    await rig.follower.poll()
    again = Rig(tmp_path)
    assert again.follower.load_cached() is True
    assert again.swapped[0].snapshot == with_tier(2, "b")


# -- one pool, and notices on the bus ----------------------------------------------------------------------------------


async def test_agent_requests_its_pool_and_learns_the_confirmed_epoch(rig: Rig, tmp_path: Path) -> None:
    confirmed: list[int] = []
    rig.follower = rig.new_follower(pool=PoolName("base"), on_confirmed=confirmed.append)
    rig.serves(snapshot(epoch=4))
    await rig.follower.poll()
    rig.answer = lambda _: Response(status_code=204, headers={followers.EPOCH_HEADER: "9"})
    await rig.follower.poll()
    assert [request.query_params["pool"] for request in rig.asked] == ["base", "base"]
    assert rig.asked[1].query_params["after"] == "4"
    assert confirmed == [4, 9]


@pytest.mark.parametrize("epoch", ["", "x", "-3", "9" * 50])
async def test_an_odd_epoch_beside_a_204_is_no_harm(rig: Rig, epoch: str) -> None:
    confirmed: list[int] = []
    rig.follower = rig.new_follower(on_confirmed=confirmed.append)
    rig.answer = lambda _: Response(status_code=204, headers={followers.EPOCH_HEADER: epoch})
    assert await rig.follower.poll() is False
    assert confirmed == [0]


async def until_asked(rig: Rig, times: int) -> None:
    async with asyncio.timeout(20):
        while len(rig.asked) < times:
            await asyncio.sleep(0.005)


async def test_notice_of_a_later_epoch_restarts_the_poll(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "NEWS_GRACE_S", 0.0)
    rig.hangs = True
    polling = asyncio.create_task(rig.follower.poll())
    await until_asked(rig, 1)
    rig.follower.handle_notice(SnapshotNotice(epoch=3))
    async with asyncio.timeout(20):
        assert await polling is False, "nothing came, and it may be asked again"


async def test_further_notices_do_not_delay_the_next_poll(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "NEWS_GRACE_S", 1.0)
    rig.hangs = True
    polling = asyncio.create_task(rig.follower.poll())
    await until_asked(rig, 1)
    async with asyncio.timeout(20):
        while not polling.done():
            rig.follower.handle_notice(SnapshotNotice(epoch=3))
            await asyncio.sleep(0.01)
    assert await polling is False


async def test_notice_during_a_poll_cancellation_is_no_failure(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "NEWS_GRACE_S", 0.0)
    given_up = asyncio.Event()

    async def reluctant(scope: Any, receive: Any, send: Any) -> None:
        try:
            rig.asked.append(Request(scope, receive))
            await asyncio.Event().wait()
        finally:
            given_up.set()
            await asyncio.sleep(0.05)

    monkeypatch.setattr(rig, "_app", reluctant)
    rig.follower = rig.new_follower()
    polling = asyncio.create_task(rig.follower.poll())
    await until_asked(rig, 1)
    rig.follower.handle_notice(SnapshotNotice(epoch=3))
    await given_up.wait()
    rig.follower.handle_notice(SnapshotNotice(epoch=4))
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
async def test_unrelated_notice_does_not_restart_the_poll(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, news: SnapshotNotice, why: str
) -> None:
    monkeypatch.setattr(followers, "NEWS_GRACE_S", 0.0)
    rig.follower = rig.new_follower(pool=PoolName("base"))
    rig.serves(snapshot(epoch=4))
    await rig.follower.poll()
    rig.hangs = True
    polling = asyncio.create_task(rig.follower.poll())
    await until_asked(rig, 2)
    rig.follower.handle_notice(news)
    await asyncio.sleep(0.1)
    assert not polling.done(), why
    polling.cancel()


async def test_gateway_names_itself_and_learns_the_gateway_count(rig: Rig) -> None:
    heard: list[int] = []
    follower = rig.new_follower(gateway_id="gateway-7", on_gateways=heard.append)
    for said in ("6", "", "-1", "many", "0", "1000000"):
        headers = {followers.GATEWAYS_HEADER: said} if said else {}
        rig.answer = lambda _, headers=headers: Response(status_code=204, headers=headers)  # type: ignore[misc]
        await follower.poll()
    assert heard == [6]
    assert {request.headers[followers.GATEWAY_HEADER] for request in rig.asked} == {"gateway-7"}
    await rig.follower.poll()
    assert followers.GATEWAY_HEADER not in rig.asked[-1].headers, "an agent is no gateway"
