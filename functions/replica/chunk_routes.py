"""Chunks for peers: what this node has of an artifact, for holders of the installation's token.

GET /chunks/{sha256}?artifact=<digest>   the chunk's bytes, at the node's upload rate; 404: not here; 503: busy
GET /swarm/{digest}                      the artifact's chunks that are here, as a bitmap

The including app (peer_app) requires the token for every route. At most `max_uploads` run at the same time. Each
holds a chunk in memory, and a few fast uploads spread an artifact sooner than many slow ones. Other peers are told
when to retry. Neighbours: artifacts.swarm.shelf (stored chunks), artifacts.swarm.chunk_clients (the other side).
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response, StreamingResponse

from functions.api.ids import Digest
from functions.artifacts.errors import ArtifactRefused
from functions.artifacts.manifest import check_digest
from functions.artifacts.swarm.chunk_clients import Bandwidth
from functions.artifacts.swarm.protocol import CHUNK_PATH, HAVE_HEADER, HAVE_PATH, RETRY_HEADER
from functions.artifacts.swarm.shelf import ChunkShelf
from functions.decisions.distribution.chunk_bits import encode
from functions.fleet import own_stalls

_SLICE_BYTES = 256 * 1024
_BUSY_MIN_MS, _BUSY_MAX_MS = 50, 2000
_SEND_TIMEOUT_S = 30.0  # for one slice: a peer that stops reading must not occupy a place


@dataclass(slots=True)
class ChunkUploads:
    """Running uploads and their rate. Owned by one event loop."""

    rate: Bandwidth = field(default_factory=Bandwidth)
    max_uploads: int = 4
    running: int = 0
    chunk_bytes: int = 0  # size of the last requested chunk
    bytes_total: int = 0
    refused_total: int = 0

    def busy_ms(self) -> int:
        """Return in how many milliseconds a place is likely to be free: after two chunks at the upload rate, within
        bounds; 100 without a rate. Two, since others wait too: in the simulator one caused a seventh more futile
        requests, and four slowed nodes."""
        if self.rate.bytes_per_s is None:
            return 100
        return int(min(_BUSY_MAX_MS, max(_BUSY_MIN_MS, 2000 * self.chunk_bytes / self.rate.bytes_per_s)))


def chunk_routes(shelf: ChunkShelf, uploads: ChunkUploads) -> APIRouter:
    router = APIRouter()

    @router.get(CHUNK_PATH + "{sha256}")
    async def chunk(sha256: str, artifact: str) -> Response:
        digest = _digest(artifact)
        if digest is None:
            return _refused(400, "artifact must be a digest: sha256: and 64 hex digits")
        if uploads.running >= uploads.max_uploads:
            uploads.refused_total += 1
            return _busy(uploads)
        uploads.running += 1
        try:
            content = await asyncio.to_thread(shelf.read, digest, sha256)
        except BaseException:
            uploads.running -= 1
            raise
        if content is None:
            uploads.running -= 1
            return _refused(404, "this node does not have the chunk", _have(shelf, digest))
        uploads.chunk_bytes = len(content)
        headers = _have(shelf, digest) | {"content-length": str(len(content))}
        return _Upload(content, uploads, headers)

    @router.get(HAVE_PATH + "{digest}")
    async def have(digest: str) -> Response:
        asked = _digest(digest)
        if asked is None:
            return _refused(400, "the path must end with a digest: sha256: and 64 hex digits")
        await asyncio.to_thread(shelf.find, asked)
        found = shelf.have(asked)
        if found is None:
            return _refused(404, "this node has nothing of the artifact")
        return JSONResponse({"chunks": found[1], "have": encode(*found)})

    return router


class _Upload(StreamingResponse):
    """A chunk being sent; its place is freed at the end in any case."""

    def __init__(self, content: bytes, uploads: ChunkUploads, headers: dict[str, str]) -> None:
        self._uploads = uploads
        super().__init__(_paced(content, uploads), headers=headers, media_type="application/octet-stream")

    async def __call__(self, scope, receive, send) -> None:  # type: ignore[no-untyped-def]
        async def in_time(message) -> None:  # type: ignore[no-untyped-def]
            async with own_stalls.timeout(_SEND_TIMEOUT_S):
                await send(message)

        try:
            await super().__call__(scope, receive, in_time)
        finally:
            self._uploads.running -= 1


async def _paced(content: bytes, uploads: ChunkUploads) -> AsyncIterator[bytes]:
    view = memoryview(content)
    for start in range(0, len(content), _SLICE_BYTES):
        piece = bytes(view[start : start + _SLICE_BYTES])
        wait_s = uploads.rate.reserve(len(piece))
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        uploads.bytes_total += len(piece)
        yield piece


def _have(shelf: ChunkShelf, digest: Digest) -> dict[str, str]:
    found = shelf.have(digest)
    return {} if found is None else {HAVE_HEADER: encode(*found)}


def _busy(uploads: ChunkUploads) -> Response:
    after_ms = uploads.busy_ms()
    headers = {"retry-after": str(-(-after_ms // 1000)), RETRY_HEADER: str(after_ms)}
    return _refused(503, "too many uploads are running; retry after the time in retry-after", headers)


def _digest(text: str) -> Digest | None:
    try:
        return check_digest(text)
    except ArtifactRefused:
        return None


def _refused(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": {"message": message}}, status, headers=headers)
