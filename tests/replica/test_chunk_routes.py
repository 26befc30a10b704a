"""Chunks for peers: only present and verified ones, only with the token, and only a limited number at once."""

import asyncio
import hashlib
from pathlib import Path
from random import Random

import httpx
import pytest
from fastapi import FastAPI

from functions.api.ids import Digest
from functions.artifacts import manifest as manifests
from functions.artifacts.assembly import Assembly
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.manifest import FileEntry, Manifest
from functions.artifacts.swarm.chunk_clients import Bandwidth
from functions.artifacts.swarm.shelf import ChunkShelf, bits_of
from functions.decisions.distribution.chunk_bits import decode
from functions.replica.chunk_routes import ChunkUploads, chunk_routes
from functions.replica.peer_app import CredentialRequired

CONTENTS = [Random(number).randbytes(2000 + number) for number in range(9)]
HASHES = [hashlib.sha256(content).hexdigest() for content in CONTENTS]
DOCUMENT = manifests.encode(
    Manifest(
        files=tuple(
            FileEntry(path=f"part-{number}", size_bytes=len(content), sha256=sha256, chunks=(sha256,))
            for number, (content, sha256) in enumerate(zip(CONTENTS, HASHES, strict=True))
        )
    )
)
DIGEST = manifests.digest_of(DOCUMENT)
OTHER = Digest("sha256:" + "0" * 64)


@pytest.fixture
def shelf(tmp_path: Path) -> ChunkShelf:
    return ChunkShelf(ArtifactCache(tmp_path))


def assembly_with(shelf: ChunkShelf, *numbers: int) -> Assembly:
    assembly = Assembly.open(shelf.cache, DIGEST, DOCUMENT)
    for number in numbers:
        assembly.put(assembly.chunks[number], CONTENTS[number])
    return assembly


def client(shelf: ChunkShelf, uploads: ChunkUploads | None = None, token: str = "right") -> httpx.AsyncClient:
    app = FastAPI()
    app.include_router(chunk_routes(shelf, uploads or ChunkUploads()))
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(CredentialRequired(app, lambda path: ("right",))),
        base_url="http://10.0.0.1:1",
        headers={"authorization": f"Bearer {token}"},
    )


async def test_unfinished_artifact_serves_only_verified_chunks(shelf: ChunkShelf) -> None:
    shelf.add(assembly_with(shelf, 0, 8))
    async with client(shelf) as http:
        given = await http.get(f"/chunks/{HASHES[8]}", params={"artifact": DIGEST})
        assert (given.status_code, given.content) == (200, CONTENTS[8])
        assert decode(given.headers["x-shoal-have"], 9) == 0b100000001
        assert (await http.get(f"/chunks/{HASHES[1]}", params={"artifact": DIGEST})).status_code == 404
        told = (await http.get(f"/swarm/{DIGEST}")).json()
        assert (told["chunks"], decode(told["have"], 9)) == (9, 0b100000001)


async def test_chunks_lost_in_a_power_cut_are_not_served(shelf: ChunkShelf) -> None:
    killed = assembly_with(shelf, 0, 8)
    lost = killed.cache.partial_path(DIGEST) / "tree" / killed.chunks[8].path
    lost.write_bytes(bytes(killed.chunks[8].size_bytes))
    resumed = assembly_with(shelf)
    assert resumed.have.count(1) == 2
    shelf.add(resumed)
    async with client(shelf) as http:
        for _ in range(2):
            given = await http.get(f"/chunks/{HASHES[0]}", params={"artifact": DIGEST})
            assert (given.status_code, given.content) == (200, CONTENTS[0])
            assert (await http.get(f"/chunks/{HASHES[8]}", params={"artifact": DIGEST})).status_code == 404
        resumed.put(resumed.chunks[8], CONTENTS[8])
        assert (await http.get(f"/chunks/{HASHES[8]}", params={"artifact": DIGEST})).status_code == 200


async def test_whole_artifact_is_served_from_the_cache_after_a_restart(shelf: ChunkShelf) -> None:
    assembly_with(shelf, *range(9)).finish()
    async with client(ChunkShelf(shelf.cache)) as http:
        for sha256, content in zip(HASHES, CONTENTS, strict=True):
            assert (await http.get(f"/chunks/{sha256}", params={"artifact": DIGEST})).content == content
        assert decode((await http.get(f"/swarm/{DIGEST}")).json()["have"], 9) == 0b111111111


async def test_artifact_that_finishes_meanwhile_is_still_served(shelf: ChunkShelf) -> None:
    assembly = assembly_with(shelf, *range(9))
    shelf.add(assembly)
    assembly.finish()
    async with client(shelf) as http:
        assert (await http.get(f"/chunks/{HASHES[3]}", params={"artifact": DIGEST})).content == CONTENTS[3]
        shelf.remove(DIGEST)
        assert (await http.get(f"/chunks/{HASHES[3]}", params={"artifact": DIGEST})).content == CONTENTS[3]


async def test_evicted_artifact_is_not_served(shelf: ChunkShelf) -> None:
    assembly_with(shelf, *range(9)).finish()
    async with client(shelf) as http:
        assert (await http.get(f"/swarm/{DIGEST}")).status_code == 200
        shelf.cache.discard(DIGEST)
        assert (await http.get(f"/chunks/{HASHES[3]}", params={"artifact": DIGEST})).status_code == 404
        assert (await http.get(f"/swarm/{DIGEST}")).status_code == 404


@pytest.mark.parametrize("token", ["", "wrong", "right "])
async def test_chunk_routes_need_the_token(shelf: ChunkShelf, token: str) -> None:
    shelf.add(assembly_with(shelf, 0))
    async with client(shelf, token=token) as http:
        for path in (f"/chunks/{HASHES[0]}?artifact={DIGEST}", f"/swarm/{DIGEST}", "/elsewhere"):
            assert (await http.get(path)).status_code == 401


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"/chunks/{HASHES[0]}", 422),
        (f"/chunks/{HASHES[0]}?artifact=x", 400),
        (f"/chunks/{HASHES[0]}?artifact=sha256:../../../etc/passwd", 400),
        (f"/chunks/..%2F..%2Fetc%2Fpasswd?artifact={DIGEST}", 404),
        (f"/chunks/part-0?artifact={DIGEST}", 404),
        (f"/chunks/{HASHES[0]}?artifact={OTHER}", 404),
        (f"/swarm/{OTHER}", 404),
        ("/swarm/sha256:x", 400),
    ],
)
async def test_invalid_chunk_requests_are_refused(shelf: ChunkShelf, path: str, status: int) -> None:
    shelf.add(assembly_with(shelf, *range(9)))
    async with client(shelf) as http:
        assert (await http.get(path)).status_code == status


async def test_only_so_many_are_served_at_once_and_places_come_back(shelf: ChunkShelf) -> None:
    shelf.add(assembly_with(shelf, *range(9)))
    uploads = ChunkUploads(Bandwidth(20_000.0), max_uploads=2)
    async with client(shelf, uploads) as http:
        answers = await asyncio.gather(
            *(http.get(f"/chunks/{sha256}", params={"artifact": DIGEST}) for sha256 in HASHES[:5])
        )
        statuses = sorted(answer.status_code for answer in answers)
        assert statuses == [200, 200, 503, 503, 503]
        refused = next(answer for answer in answers if answer.status_code == 503)
        assert int(refused.headers["retry-after"]) >= 1
        assert 50 <= int(refused.headers["x-shoal-retry-after-ms"]) <= 2000
        assert (uploads.running, uploads.refused_total) == (0, 3)
        assert (await http.get(f"/chunks/{HASHES[5]}", params={"artifact": DIGEST})).status_code == 200
        assert (await http.get(f"/chunks/{'f' * 64}", params={"artifact": DIGEST})).status_code == 404
    assert uploads.running == 0
    assert uploads.bytes_total == sum(len(answer.content) for answer in answers if answer.status_code == 200) + len(
        CONTENTS[5]
    )


async def test_a_peer_that_leaves_frees_its_place(shelf: ChunkShelf) -> None:
    shelf.add(assembly_with(shelf, 0))
    uploads = ChunkUploads(Bandwidth(100.0))  # a chunk takes 20 s
    async with client(shelf, uploads) as http:
        asking = asyncio.get_running_loop().create_task(http.get(f"/chunks/{HASHES[0]}", params={"artifact": DIGEST}))
        while uploads.running == 0:
            await asyncio.sleep(0.001)
        asking.cancel()
        await asyncio.wait({asking})
    assert uploads.running == 0


def test_bits_of_one_byte_a_chunk() -> None:
    assert bits_of(b"") == 0
    assert bits_of(b"\x01\x00\x00\x01\x01") == 0b11001
