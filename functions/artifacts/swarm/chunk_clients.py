"""Chunks from a peer or from the store, at this node's download rate. A peer's failures are classed by their remedy.

httpx takes 1.0 s of CPU per GB here and reached 930 MB/s on one core; a hand-written protocol took 0.2 s and reached
2.4 GB/s. Given sha256 (0.5 s), the sender (0.7 s) and the disk, that difference does not matter below 5 Gbit/s per
node.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import httpx
import msgspec

from functions.api.ids import Digest
from functions.artifacts.locations import chunk_key
from functions.artifacts.manifest import Chunk
from functions.artifacts.s3 import S3Store
from functions.artifacts.swarm.protocol import CHUNK_PATH, HAVE_HEADER, HAVE_PATH, RETRY_HEADER
from functions.decisions.distribution.chunk_bits import decode
from functions.decisions.distribution.peers import PeerFailure

_BURST_S = 0.1  # idle time that later bytes may make up for


@dataclass(slots=True)
class Bandwidth:
    bytes_per_s: float | None = None
    clock: Callable[[], float] = time.monotonic
    burst_s: float = _BURST_S
    _free_at_s: float = float("-inf")  # when all reserved bytes have passed
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reserve(self, size_bytes: int) -> float:
        """Reserve these bytes and return the seconds to wait until the rate has let them pass; 0 without a limit."""
        if self.bytes_per_s is None:
            return 0.0
        now_s = self.clock()
        with self._lock:
            self._free_at_s = max(self._free_at_s, now_s - self.burst_s) + size_bytes / self.bytes_per_s
            return max(0.0, self._free_at_s - now_s)


TIMEOUT = httpx.Timeout(10.0, connect=5.0)  # per read; the average rate of a slow peer is checked separately
MIN_PEER_BYTES_PER_S = 64 * 1024
_JUDGED_AFTER_S = 5.0
_ANSWER_WITHIN_S = 15.0  # for connection and all headers; a peer that drips headers passes every read timeout
_BUSY_DEFAULT_S, _BUSY_MAX_S = 0.3, 10.0
_ANSWER_MAX_BYTES = 16 * 1024  # limit for /swarm/{digest}, a bitmap


@dataclass(eq=False)
class PeerFailed(Exception):
    """This peer sends no chunk now; `failure` says what to do about the peer."""

    failure: PeerFailure
    detail: str
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ReceivedChunk:
    content: bytes
    have: int | None  # the sender's bitmap, if it sent one


@dataclass(frozen=True, slots=True)
class PeerClient:
    """Client for the peers' chunk routes. `http` carries the token; it must follow no redirects and use no proxies."""

    http: httpx.AsyncClient
    digest: Digest
    count: int
    rate: Bandwidth
    min_bytes_per_s: float = MIN_PEER_BYTES_PER_S
    answer_within_s: float = _ANSWER_WITHIN_S
    clock: Callable[[], float] = time.monotonic

    async def read(self, address: str, chunk: Chunk) -> ReceivedChunk:
        """Return the bytes that the peer sends for the chunk, unverified, and the bitmap of chunks that it reports with
        them, if any. Raise PeerFailed if the peer does not send them."""
        url = f"http://{address}{CHUNK_PATH}{chunk.sha256}"
        try:
            async with AsyncExitStack() as stack:
                asking = self.http.stream("GET", url, params={"artifact": self.digest})
                async with asyncio.timeout(self.answer_within_s):
                    response = await stack.enter_async_context(asking)
                self._check(response)
                content = await self._body(response, chunk.size_bytes)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            raise PeerFailed(PeerFailure.BROKEN, repr(error)) from error
        return ReceivedChunk(content, self._reported_bitmap(response.headers.get(HAVE_HEADER)))

    async def have(self, address: str) -> int:
        """Request and return the bitmap of chunks that the peer has; raise PeerFailed if it sends no valid one."""
        try:
            async with (
                asyncio.timeout(self.answer_within_s),
                self.http.stream("GET", f"http://{address}{HAVE_PATH}{self.digest}") as response,
            ):
                self._check(response)
                if "content-encoding" in response.headers:  # nodes never compress; a small block may expand hugely
                    raise PeerFailed(PeerFailure.BROKEN, "its bitmap is compressed")
                document = bytearray()
                async for block in response.aiter_bytes():
                    document += block
                    if len(document) > _ANSWER_MAX_BYTES:
                        raise PeerFailed(PeerFailure.BROKEN, "its bitmap is too long")
            return decode(_HaveAnswer.of(bytes(document)).have, self.count)
        except (
            httpx.HTTPError,
            httpx.InvalidURL,
            msgspec.DecodeError,
            RecursionError,
            ValueError,
            TimeoutError,
        ) as error:
            raise PeerFailed(PeerFailure.BROKEN, repr(error)) from error

    def _check(self, response: httpx.Response) -> None:
        if response.status_code == 503:
            raise PeerFailed(PeerFailure.BUSY, "busy", _busy_s(response.headers.get(RETRY_HEADER)))
        if response.status_code == 404:
            raise PeerFailed(PeerFailure.LACKS, "does not have it")
        if response.status_code != 200:
            raise PeerFailed(PeerFailure.BROKEN, f"answered {response.status_code}")

    async def _body(self, response: httpx.Response, size_bytes: int) -> bytes:
        content = bytearray()
        began_s, waited_s = self.clock(), 0.0
        async for block in response.aiter_raw():
            content += block
            if len(content) > size_bytes:
                raise PeerFailed(PeerFailure.CORRUPT, f"more than the {size_bytes} bytes it should have")
            wait_s = self.rate.reserve(len(block))
            if wait_s > 0:
                await asyncio.sleep(wait_s)
                waited_s += wait_s
            took_s = self.clock() - began_s - waited_s  # our own rate limit is not the peer's fault
            if took_s > _JUDGED_AFTER_S and len(content) < self.min_bytes_per_s * took_s:
                raise PeerFailed(PeerFailure.SLOW, f"{len(content)} bytes in {took_s:.1f} s")
        return bytes(content)

    def _reported_bitmap(self, header: str | None) -> int | None:
        try:
            return None if header is None else decode(header, self.count)
        except ValueError:  # the chunk is good anyway; the tracker reports the bitmap
            return None


class _HaveAnswer(msgspec.Struct, frozen=True):
    chunks: int
    have: str

    @staticmethod
    def of(document: bytes) -> "_HaveAnswer":
        return msgspec.json.decode(document, type=_HaveAnswer)


def _busy_s(header: str | None) -> float:
    if header is None or not (header.isascii() and header.isdigit()):
        return _BUSY_DEFAULT_S
    return min(_BUSY_MAX_S, int(header[:6]) / 1000)


@dataclass(frozen=True, slots=True)
class Origin:
    store: S3Store
    rate: Bandwidth

    def read(self, chunk: Chunk, sleep: Callable[[float], None]) -> bytes:
        """Return the chunk's bytes from the store, unverified, no faster than `rate` allows; raise ArtifactError.
        `sleep` may raise to cancel the read."""
        content = bytearray()
        for block in self.store.stream(chunk_key(chunk.sha256), chunk.size_bytes):
            content += block
            sleep(self.rate.reserve(len(block)))
        return bytes(content)
