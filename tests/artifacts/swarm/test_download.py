"""Nodes that fetch one artifact together: every chunk verified, few reads from the store, whatever goes wrong."""

import asyncio
from pathlib import Path

import pytest

from functions.api.ids import Digest
from functions.artifacts.errors import ArtifactCorrupt, ArtifactMissing
from functions.artifacts.manifest import check_digest
from functions.artifacts.swarm.shelf import ChunkShelf
from tests.artifacts.swarm.rig import HOUR_S, SwarmRig, check_whole


class CorruptShelf(ChunkShelf):
    def read(self, digest: Digest, sha256: str) -> bytes | None:
        content = super().read(digest, sha256)
        return None if content is None else content[:-1] + bytes([content[-1] ^ 1])


class LongShelf(ChunkShelf):
    def read(self, digest: Digest, sha256: str) -> bytes | None:
        content = super().read(digest, sha256)
        return None if content is None else content + b"more"


class EmptyShelf(ChunkShelf):
    """Shelf that announces chunks but never serves them."""

    def read(self, digest: Digest, sha256: str) -> bytes | None:
        return None


async def test_a_node_alone_reads_each_chunk_once(tmp_path: Path) -> None:
    rig = SwarmRig(tmp_path)
    digest = rig.publish(40)
    node = rig.node(1)
    check_whole(await node.fetch(digest), digest)
    assert set(rig.chunk_reads().values()) == {1}
    assert len(rig.chunk_reads()) == 40


async def test_many_nodes_at_once_read_each_chunk_once_in_all(tmp_path: Path) -> None:
    rig = SwarmRig(tmp_path)
    digest = rig.publish(60)
    nodes = [rig.node(number) for number in range(1, 7)]
    downloads = [node.download(digest) for node in nodes]
    async with asyncio.timeout(90):
        paths = await asyncio.gather(*(download.run() for download in downloads))
    for path in paths:
        check_whole(path, digest)
    assert set(rig.chunk_reads().values()) == {1}
    assert sum(download.progress.from_peers_bytes for download in downloads) == 5 * sum(
        1000 + number for number in range(60)
    )


async def test_a_seed_spares_the_store(tmp_path: Path) -> None:
    rig = SwarmRig(tmp_path)
    digest = rig.publish(30)
    seed = rig.node(1)
    download = seed.download(digest)
    await download.run()
    rig.store.reads.clear()
    stopped = asyncio.Event()
    seeding = asyncio.get_running_loop().create_task(download.seed(60.0, stopped))
    while not rig.tracker.reports() or rig.tracker.reports()[0].complete == 0:
        await asyncio.sleep(0.01)
    check_whole(await rig.node(2).fetch(digest), digest)
    assert not rig.chunk_reads()
    stopped.set()
    await seeding
    assert [report.nodes for report in rig.tracker.reports()] == [1]  # the second node; the seed has deregistered


async def test_cached_artifact_is_not_fetched(tmp_path: Path) -> None:
    rig = SwarmRig(tmp_path)
    digest = rig.publish(3)
    node = rig.node(1)
    path = await node.fetch(digest)
    rig.store.objects.clear()
    assert await node.fetch(digest) == path


@pytest.mark.parametrize("shelf", [CorruptShelf, LongShelf])
async def test_a_corrupt_sender_is_banned_and_its_chunks_come_from_elsewhere(
    tmp_path: Path, shelf: type[ChunkShelf]
) -> None:
    rig = SwarmRig(tmp_path)
    digest = rig.publish(30)
    bad = rig.node(1, shelf=shelf)
    seeding = bad.download(digest)
    await seeding.run()
    background = asyncio.get_running_loop().create_task(seeding.seed(60.0, asyncio.Event()))
    while not rig.tracker.reports() or rig.tracker.reports()[0].complete == 0:
        await asyncio.sleep(0.01)
    download = rig.node(2).download(digest)
    async with asyncio.timeout(60):
        check_whole(await download.run(), digest)
    assert 1 <= download.progress.failures["peer corrupt"] <= 4  # under way at the first detection
    assert download.progress.from_peers_bytes == 0
    background.cancel()


async def test_peer_without_announced_chunks_does_not_stop_others(tmp_path: Path) -> None:
    rig = SwarmRig(tmp_path)
    digest = rig.publish(10)
    liar = rig.node(1, shelf=EmptyShelf)
    seeding = liar.download(digest)
    await seeding.run()
    background = asyncio.get_running_loop().create_task(seeding.seed(120.0, asyncio.Event()))
    while not rig.tracker.reports() or rig.tracker.reports()[0].complete == 0:
        await asyncio.sleep(0.01)
    check_whole(await rig.node(2).fetch(digest, 100.0), digest)
    background.cancel()


async def test_dead_peer_is_replaced(tmp_path: Path) -> None:
    rig = SwarmRig(tmp_path)
    digest = rig.publish(20)
    dead = rig.node(1)
    download = dead.download(digest)
    await download.run()
    background = asyncio.get_running_loop().create_task(download.seed(0.5, asyncio.Event()))
    while not rig.tracker.reports() or rig.tracker.reports()[0].complete == 0:
        await asyncio.sleep(0.01)
    background.cancel()  # killed: it does not deregister
    rig.away(dead.address)
    check_whole(await rig.node(2).fetch(digest, 100.0), digest)


async def test_without_a_tracker_the_store_is_enough(tmp_path: Path) -> None:
    rig = SwarmRig(tmp_path)
    digest = rig.publish(20)
    rig.tracker_away()
    download = rig.node(1).download(digest)
    running = asyncio.get_running_loop().create_task(download.run())
    async with asyncio.timeout(60):
        while download.progress.chunks == 0:
            await asyncio.sleep(0.001)
        rig.clock.skip_s += HOUR_S
        check_whole(await running, digest)
    check_whole(await rig.node(2).download(digest, tracker=False).run(), digest)


async def test_a_tracker_that_goes_away_half_way_leaves_the_known_peers(tmp_path: Path) -> None:
    rig = SwarmRig(tmp_path)
    digest = rig.publish(200)
    nodes = [rig.node(number) for number in range(1, 4)]
    downloads = [node.download(digest) for node in nodes]
    running = [asyncio.get_running_loop().create_task(download.run()) for download in downloads]
    async with asyncio.timeout(100):
        while any(download.progress.have < 5 or download.progress.nodes < 3 for download in downloads):
            await asyncio.sleep(0.001)
        rig.tracker_away()
        for _ in range(50):  # let the tracker's earlier answers arrive before the hour passes
            await asyncio.sleep(0.001)
        rig.clock.skip_s += HOUR_S
        for path in await asyncio.gather(*running):
            check_whole(path, digest)
    assert len(rig.chunk_reads()) == 200
    assert sum(rig.chunk_reads().values()) < 400  # a third each plus chunks already assigned (116); without peers 600


async def test_a_store_that_answers_503_for_a_while_is_waited_for(tmp_path: Path) -> None:
    rig = SwarmRig(tmp_path)
    digest = rig.publish(10)
    rig.store.broken = 2
    download = rig.node(1).download(digest)
    async with asyncio.timeout(60):
        check_whole(await download.run(), digest)
    assert download.progress.failures["store broken"] >= 1


async def test_corrupt_chunk_in_the_store_is_reported_and_nothing_is_visible(tmp_path: Path) -> None:
    rig = SwarmRig(tmp_path)
    digest = rig.publish(5)
    bad = sorted(key for key in rig.store.objects if key.startswith("chunks/"))[0]
    good = rig.store.objects[bad]
    rig.store.objects[bad] = good[:-1] + b"!"
    node = rig.node(1)
    with pytest.raises(ArtifactCorrupt, match="publish it again"):
        await node.fetch(digest)
    assert not node.cache.held(digest)
    rig.store.objects[bad] = good
    check_whole(await node.fetch(digest), digest)


async def test_missing_chunk_in_the_store_is_reported(tmp_path: Path) -> None:
    rig = SwarmRig(tmp_path)
    digest = rig.publish(5)
    del rig.store.objects[sorted(key for key in rig.store.objects if key.startswith("chunks/"))[0]]
    with pytest.raises(ArtifactCorrupt, match="has no chunks/"):
        await rig.node(1).fetch(digest)


async def test_unpublished_artifact_is_missing(tmp_path: Path) -> None:
    rig = SwarmRig(tmp_path)
    with pytest.raises(ArtifactMissing):
        await rig.node(1).fetch(check_digest("sha256:" + "0" * 64))


async def test_cancelled_fetch_is_resumed(tmp_path: Path) -> None:
    rig = SwarmRig(tmp_path)
    digest = rig.publish(100)
    node = rig.node(1)
    first = node.download(digest)
    running = asyncio.get_running_loop().create_task(first.run())
    while first.progress.have < 20:
        await asyncio.sleep(0.001)
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
    assert not node.cache.held(digest)
    read_before = sum(rig.chunk_reads().values())
    second = node.download(digest)
    async with asyncio.timeout(60):
        check_whole(await second.run(), digest)
    assert second.progress.resumed >= 20
    assert sum(rig.chunk_reads().values()) - read_before == 100 - second.progress.resumed


async def test_two_fetches_of_one_node_are_one(tmp_path: Path) -> None:
    rig = SwarmRig(tmp_path)
    digest = rig.publish(50)
    node = rig.node(1)
    async with asyncio.timeout(60):
        first, second = await asyncio.gather(node.download(digest).run(), node.download(digest).run())
    assert first == second
    assert set(rig.chunk_reads().values()) == {1}
