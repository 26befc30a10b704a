"""`/v1/snapshot` over real sockets: publish, follow, wait and refuse."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from functions.api import snapshot as snapshots
from functions.api.ids import PoolName, TenantId
from functions.api.snapshot import PoolEntry, Snapshot, TenantEntry
from functions.api.snapshot_document import delta_lines
from functions.api.snapshot_index import changes_between, indexed
from functions.decisions.catalogue import Catalogue
from functions.fleet import snapshot_file
from functions.fleet.role_credentials import Purpose, derived
from functions.fleet.snapshots import (
    BASE_HEADER,
    EPOCH_FLOOR_HEADER,
    EPOCH_HEADER,
    FENCE_HEADER,
    GATEWAY_HEADER,
    GATEWAYS_HEADER,
    HASH_HEADER,
    SNAPSHOT_PATH,
    SnapshotFollower,
)
from functions.registry import snapshot_routes
from functions.registry.store import GATEWAY_SILENT_S, FollowingGateways
from tests.fleet.builders import snapshot
from tests.registry.rig import TOKEN, Rig, error_of, serving


def stored(rig: Rig) -> Snapshot:
    content = snapshot_file.read(rig.file)
    assert content is not None
    return content.snapshot


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with serving(tmp_path) as made:
        yield made


async def test_published_snapshot_is_stored_and_served_byte_for_byte(rig: Rig) -> None:
    response = await rig.put(snapshot(epoch=3))
    assert (response.status_code, response.headers[EPOCH_HEADER]) == (204, "3")
    assert stored(rig) == snapshot(epoch=3)
    served = await rig.get(SNAPSHOT_PATH)
    assert served.content == snapshots.encode(snapshot(epoch=3))
    assert served.headers[HASH_HEADER] == snapshots.content_hash(snapshot())
    assert served.headers[EPOCH_HEADER] == "3"


async def test_following_gateways_are_counted_and_reported(rig: Rig) -> None:
    now_s = [0.0]
    rig.store.gateways = FollowingGateways(lambda: now_s[0])

    async def reported_gateways(gateway: str) -> str | None:
        response = await rig.client.get(SNAPSHOT_PATH, headers={GATEWAY_HEADER: gateway} if gateway else {})
        return response.headers.get(GATEWAYS_HEADER)

    assert [await reported_gateways(name) for name in ("a", "b", "a")] == [None, None, None], (
        "not before each had time to ask"
    )
    now_s[0] += GATEWAY_SILENT_S - 1.0
    assert [await reported_gateways(name) for name in ("b", "c")] == [None, None]
    now_s[0] += 1.0
    assert await reported_gateways("c") == "3", "a was heard just as long ago as one may be silent"
    now_s[0] += 1.0
    assert await reported_gateways("") == "2", "and an agent is none"
    now_s[0] += GATEWAY_SILENT_S
    assert [await reported_gateways(""), await reported_gateways("x" * 1000), await reported_gateways("d")] == [
        None,
        None,
        "1",
    ]


async def test_only_gateway_credentials_count_as_gateways(rig: Rig) -> None:
    """Each gateway divides the limits by that number. An agent that reported many names made every share tiny."""
    now_s = [0.0]
    rig.store.gateways = FollowingGateways(lambda: now_s[0])
    now_s[0] += GATEWAY_SILENT_S

    async def reported_gateways(gateway: str, purpose: Purpose) -> str | None:
        headers = {GATEWAY_HEADER: gateway, "authorization": f"Bearer {derived(TOKEN, purpose)}"}
        response = await rig.client.get(SNAPSHOT_PATH, headers=headers)
        assert response.status_code == 204
        return response.headers.get(GATEWAYS_HEADER)

    assert [await reported_gateways(f"a{number}", "agent") for number in range(3)] == [None, None, None]
    assert [
        await reported_gateways("g", "follow"),
        await reported_gateways("b", "publish"),
        await reported_gateways("h", "follow"),
    ] == ["1", "1", "2"]


async def test_no_newer_snapshot_is_204(rig: Rig) -> None:
    assert (await rig.get(SNAPSHOT_PATH)).status_code == 204
    await rig.put(snapshot(epoch=3))
    assert (await rig.get(SNAPSHOT_PATH, after=2)).status_code == 200
    for after in (3, 4):
        response = await rig.get(SNAPSHOT_PATH, after=after)
        assert (response.status_code, response.content) == (204, b"")


async def test_head_describes_the_snapshot_without_its_body(rig: Rig) -> None:
    empty = await rig.client.head(SNAPSHOT_PATH)
    assert (empty.headers[EPOCH_HEADER], HASH_HEADER in empty.headers) == ("0", False)
    await rig.put(snapshot(epoch=3))
    described = await rig.client.head(SNAPSHOT_PATH)
    assert (described.headers[EPOCH_HEADER], described.content) == ("3", b"")
    assert described.headers[HASH_HEADER] == snapshots.content_hash(snapshot())


@pytest.mark.parametrize("epoch", [1, 2, 3])
async def test_an_epoch_that_is_not_after_the_current_one_is_refused(rig: Rig, epoch: int) -> None:
    await rig.put(snapshot(epoch=3))
    refused = await rig.put(snapshot(epoch=epoch, revision="other"))
    assert refused.status_code == 409
    error = error_of(refused)
    assert (error["code"], error["param"]) == ("epoch_taken", "epoch")
    assert f"epoch {epoch} is not after the current epoch 3" in error["message"]
    assert refused.headers[EPOCH_HEADER] == "3"
    assert stored(rig) == snapshot(epoch=3)


async def test_concurrent_puts_of_one_epoch_have_one_winner(rig: Rig) -> None:
    answers = await asyncio.gather(*(rig.put(snapshot(epoch=1, revision=str(n))) for n in range(8)))
    assert sorted(answer.status_code for answer in answers) == [204] + [409] * 7


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (b"", "Input data was truncated"),
        (b"{}\n", "missing required field"),
        (b"[" * 100_000, "not a snapshot"),
        (b"\xff\xfe", "not a snapshot"),
        (snapshots.encode(snapshot(pools=())), "served by pool base, which is not in the snapshot"),
        (snapshots.encode(snapshot(schema_version=1)), "schema version 1; this build reads 3"),
    ],
)
async def test_invalid_snapshot_is_refused_and_the_old_one_stays(rig: Rig, document: bytes, says: str) -> None:
    await rig.put(snapshot(epoch=1))
    refused = await rig.client.put(SNAPSHOT_PATH, content=document)
    assert refused.status_code == 400
    assert (error_of(refused)["code"], says in error_of(refused)["message"]) == ("invalid_snapshot", True)
    assert rig.store.epoch == 1


async def test_a_body_over_the_limit_is_refused_declared_or_not(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_routes, "SNAPSHOT_MAX_BYTES", 1000)

    async def chunked() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 100

    for content in (b" " * 1001, chunked()):
        refused = await rig.client.put(SNAPSHOT_PATH, content=content)
        assert (refused.status_code, error_of(refused)["code"]) == (413, "body_too_large")


async def test_failed_disk_write_changes_nothing(rig: Rig) -> None:
    await rig.put(snapshot(epoch=1))
    rig.file.unlink()
    rig.file.mkdir()
    refused = await rig.put(snapshot(epoch=2))
    assert (refused.status_code, error_of(refused)["code"]) == (503, "store_failed")
    assert refused.headers["retry-after"]
    assert rig.store.epoch == 1


@pytest.mark.parametrize(
    "params",
    [
        {"after": -1},
        {"after": "x"},
        {"after": 10**10},
        {"wait_s": -1},
        {"wait_s": 61},
        {"wait_s": "nan"},
        {"after": "1e3"},
    ],
)
async def test_wrong_parameters_are_named_in_the_error(rig: Rig, params: dict[str, Any]) -> None:
    refused = await rig.get(SNAPSHOT_PATH, **params)
    assert refused.status_code == 400
    assert (error_of(refused)["code"], error_of(refused)["param"]) == ("invalid_parameter", next(iter(params)))


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer wrong",
        TOKEN,
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        b"Bearer \xff\xfe",
        f"Bearer {TOKEN.upper()}",
    ],
)
async def test_without_the_token_nothing_is_served(rig: Rig, authorization: str | bytes) -> None:
    headers = {"authorization": authorization}
    for method, path in (("GET", SNAPSHOT_PATH), ("HEAD", SNAPSHOT_PATH), ("PUT", SNAPSHOT_PATH), ("GET", "/v1/fleet")):
        refused = await rig.client.request(method, path, headers=headers)
        assert refused.status_code == 401, (method, path)
    assert error_of(refused)["code"] == "invalid_internal_token"


async def test_wait_ends_with_a_later_publication(rig: Rig) -> None:
    await rig.put(snapshot(epoch=1))
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(rig.get(SNAPSHOT_PATH, after=1, wait_s=20)) for _ in range(20)]
        await rig.until_waiters(20)
        await rig.put(snapshot(epoch=2))
    assert {(it.result().status_code, it.result().headers[EPOCH_HEADER]) for it in waiting} == {(200, "2")}
    assert rig.store.waiters == 0


async def test_wait_times_out_with_204(rig: Rig) -> None:
    started_s = time.monotonic()
    assert (await rig.get(SNAPSHOT_PATH, wait_s=0.3)).status_code == 204
    assert 0.3 <= time.monotonic() - started_s < 5


async def test_existing_newer_snapshot_is_returned_without_waiting(rig: Rig) -> None:
    await rig.put(snapshot(epoch=2))
    started_s = time.monotonic()
    assert (await rig.get(SNAPSHOT_PATH, after=1, wait_s=20)).status_code == 200
    assert time.monotonic() - started_s < 5


async def test_disconnected_waiter_frees_its_place(rig: Rig) -> None:
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(rig.get(SNAPSHOT_PATH, wait_s=20)) for _ in range(5)]
        await rig.until_waiters(5)
        for task in waiting:
            task.cancel()
    await rig.until_waiters(0)


async def test_waiter_over_the_limit_gets_retry_advice(tmp_path: Path) -> None:
    async with serving(tmp_path, max_waiters=2) as rig, asyncio.TaskGroup() as group:
        waiting = [group.create_task(rig.get(SNAPSHOT_PATH, wait_s=20)) for _ in range(2)]
        await rig.until_waiters(2)
        refused = await rig.get(SNAPSHOT_PATH, wait_s=20)
        assert (refused.status_code, error_of(refused)["code"]) == (503, "too_many_waiters")
        assert refused.headers["retry-after"]
        assert (await rig.get(SNAPSHOT_PATH)).status_code == 204, "those who do not wait are served"
        for task in waiting:
            task.cancel()


async def test_closing_ends_every_wait(rig: Rig) -> None:
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(rig.get(SNAPSHOT_PATH, wait_s=20)) for _ in range(5)]
        await rig.until_waiters(5)
        rig.store.close()
    assert {it.result().status_code for it in waiting} == {204}
    assert (await rig.get(SNAPSHOT_PATH, wait_s=20)).status_code == 204
    assert (await rig.get("/readyz")).status_code == 503


async def test_registry_that_lost_its_state_learns_the_epoch_from_followers(rig: Rig) -> None:
    await rig.put(snapshot(epoch=1))
    await rig.get(SNAPSHOT_PATH, after=57)
    assert (await rig.client.head(SNAPSHOT_PATH)).headers[EPOCH_FLOOR_HEADER] == "57"
    refused = await rig.put(snapshot(epoch=57))
    assert "the next one must be above 57" in error_of(refused)["message"]
    assert (await rig.put(snapshot(epoch=58))).status_code == 204


async def test_absurdly_high_epoch_is_ignored(rig: Rig) -> None:
    await rig.get(SNAPSHOT_PATH, after=999_999_999)
    assert (await rig.put(snapshot(epoch=1))).status_code == 204


async def test_follower_and_registry_work_together(rig: Rig, tmp_path: Path) -> None:
    swapped: list[Catalogue] = []
    follower = SnapshotFollower(
        client=rig.client,
        registry_url=rig.url,
        token=TOKEN,
        cache_file=tmp_path / "cache.json",
        on_swap=swapped.append,
    )
    async with asyncio.TaskGroup() as group:
        following = group.create_task(follower.run())
        for epoch in (1, 2, 5):
            await rig.until_waiters(1)
            await rig.put(snapshot(epoch=epoch, revision=f"r{epoch}"))
            async with asyncio.timeout(10):
                while follower.current is None or follower.current.epoch != epoch:
                    await asyncio.sleep(0.005)
        following.cancel()
    assert [(it.epoch, it.snapshot.revision) for it in swapped] == [(1, "r1"), (2, "r2"), (5, "r5")]


def delta(old: Snapshot, new: Snapshot) -> bytes:
    before, after = indexed(old), indexed(new)
    return b"".join(delta_lines(new, before.content_hash, changes_between(before, after)))


def tiered(epoch: int, tier: str) -> Snapshot:
    return snapshot(epoch=epoch, tenants=(TenantEntry(TenantId("acme"), tier, ()),))


async def test_a_delta_is_published_and_followed(rig: Rig) -> None:
    await rig.put(tiered(1, "a"))
    response = await rig.client.put(SNAPSHOT_PATH, content=delta(tiered(1, "a"), tiered(2, "b")))
    assert (response.status_code, response.headers[EPOCH_HEADER]) == (204, "2")
    assert stored(rig) == tiered(2, "b")
    headers = {BASE_HEADER: snapshots.content_hash(tiered(1, "a"))}
    served = await rig.client.get(SNAPSHOT_PATH, params={"after": 1}, headers=headers)
    assert served.content == delta(tiered(1, "a"), tiered(2, "b"))
    assert served.headers[HASH_HEADER] == snapshots.content_hash(tiered(2, "b"))
    unknown = await rig.client.get(SNAPSHOT_PATH, params={"after": 1}, headers={BASE_HEADER: "sha256:0"})
    assert snapshots.decode(unknown.content) == tiered(2, "b")


async def test_delta_for_another_base_gets_a_request_for_the_whole(rig: Rig) -> None:
    await rig.put(tiered(1, "a"))
    refused = await rig.client.put(SNAPSHOT_PATH, content=delta(tiered(1, "z"), tiered(2, "b")))
    assert (refused.status_code, error_of(refused)["code"]) == (412, "base_missing")
    assert rig.store.epoch == 1


async def test_former_leader_cannot_publish(rig: Rig, tmp_path: Path) -> None:
    async def put(epoch: int, fence: str | None) -> int:
        headers = {FENCE_HEADER: fence} if fence is not None else {}
        answer = await rig.client.put(SNAPSHOT_PATH, content=snapshots.encode(tiered(epoch, "a")), headers=headers)
        return answer.status_code

    assert [await put(1, None), await put(2, "7"), await put(3, "7")] == [204, 204, 204]
    assert [await put(4, "6"), await put(4, None), await put(4, "-1"), await put(4, "x")] == [409, 409, 400, 400]
    refused = await rig.client.put(SNAPSHOT_PATH, content=b"", headers={FENCE_HEADER: "6"})
    assert (error_of(refused)["code"], error_of(refused)["param"]) == ("fenced", FENCE_HEADER)
    assert refused.headers[FENCE_HEADER] == "7", "a leader whose numbers began anew learns where they stood"
    async with serving(tmp_path) as again:
        answer = await again.client.put(
            SNAPSHOT_PATH, content=snapshots.encode(tiered(9, "a")), headers={FENCE_HEADER: "6"}
        )
        assert answer.status_code == 409, "a restart forgets nobody"


async def test_agent_wakes_for_its_own_pool_only(rig: Rig) -> None:
    await rig.put(tiered(1, "a"))
    async with asyncio.TaskGroup() as group:
        agent = group.create_task(rig.get(SNAPSHOT_PATH, after=1, wait_s=20, pool="base"))
        gateway = group.create_task(rig.get(SNAPSHOT_PATH, after=1, wait_s=20))
        await rig.until_waiters(2)
        await rig.put(tiered(2, "b"))
        assert (await gateway).headers[EPOCH_HEADER] == "2"
        assert not agent.done()
        await rig.put(snapshot(epoch=3, pools=(PoolEntry(PoolName("base"), 4096),)))
        served = await agent
    view = snapshots.decode(served.content)
    assert (view.epoch, view.tenants, [model.id for model in view.models]) == (3, (), ["acme/bot"])
    assert served.headers[HASH_HEADER] == snapshots.content_hash(view)


async def test_agent_wakes_when_its_pool_is_added(rig: Rig) -> None:
    await rig.put(tiered(1, "a"))
    async with asyncio.TaskGroup() as group:
        agent = group.create_task(rig.get(SNAPSHOT_PATH, after=1, wait_s=20, pool="later"))
        await rig.until_waiters(1)
        pools = (PoolEntry(PoolName("base"), 2048), PoolEntry(PoolName("later"), 2048))
        await rig.put(snapshot(epoch=2, pools=pools))
        view = snapshots.decode((await agent).content)
    assert [pool.name for pool in view.pools] == ["later"]


async def test_agent_of_a_removed_pool_gets_an_empty_view(rig: Rig) -> None:
    await rig.put(tiered(1, "a"))
    async with asyncio.TaskGroup() as group:
        agent = group.create_task(rig.get(SNAPSHOT_PATH, after=1, wait_s=20, pool="base"))
        await rig.until_waiters(1)
        await rig.put(snapshot(epoch=2, models=(), pools=()))
        view = snapshots.decode((await agent).content)
    assert (view.pools, view.models) == ((), ())


@pytest.mark.parametrize("pool", ["", "../x", "a b", "base\n", "B"])
async def test_invalid_pool_name_is_refused(rig: Rig, pool: str) -> None:
    refused = await rig.get(SNAPSHOT_PATH, pool=pool)
    assert (refused.status_code, error_of(refused)["param"]) == (400, "pool")


async def test_follower_by_deltas_reuses_unchanged_entries(rig: Rig, tmp_path: Path) -> None:
    swapped: list[Catalogue] = []
    follower = SnapshotFollower(
        client=rig.client, registry_url=rig.url, token=TOKEN, cache_file=tmp_path / "c", on_swap=swapped.append
    )
    await rig.put(tiered(1, "a"))
    await follower.poll()
    await rig.put(tiered(2, "b"))
    await follower.poll()
    assert [it.tenants[TenantId("acme")].tier for it in swapped] == ["a", "b"]
    assert swapped[0].snapshot.models[0] is swapped[1].snapshot.models[0]
    page = (await rig.get("/metrics")).text
    assert 'shoal_snapshot_answers_total{document="whole"} 1.0' in page
    assert 'shoal_snapshot_answers_total{document="delta"} 1.0' in page
