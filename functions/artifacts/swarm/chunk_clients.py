"""Chunks from a peer or from the store, at this node's download rate; a peer's failures named by what to do about them.

httpx takes 1.0 s of CPU for a GB here and reached 930 MB/s on one core, a hand-written protocol 0.2 s and 2.4 GB/s;
beside sha256 (0.5 s), the sender (0.7 s) and the disk that does not decide anything below 5 Gbit/s a node.
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
from functions.decisions.distribution.peers import Failure

_BURST_S = 0.1  # what an idle moment may be caught up with


@dataclass(slots=True)
class Bandwidth:
    bytes_per_s: float | None = None
    clock: Callable[[], float] = time.monotonic
    burst_s: float = _BURST_S
    _free_at_s: float = float("-inf")  # when all that is reserved has gone through
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reserve(self, size_bytes: int) -> float:
        """Seconds to wait before these bytes have gone through."""
        if self.bytes_per_s is None:
            return 0.0
        now_s = self.clock()
        with self._lock:
            self._free_at_s = max(self._free_at_s, now_s - self.burst_s) + size_bytes / self.bytes_per_s
            return max(0.0, self._free_at_s - now_s)


TIMEOUT = httpx.Timeout(10.0, connect=5.0)  # one read; a peer that drips is judged by its rate
MIN_PEER_BYTES_PER_S = 64 * 1024
_JUDGED_AFTER_S = 5.0
_ANSWER_WITHIN_S = 15.0  # connected and all headers here: one that drips those reads as alive to every single read
_BUSY_DEFAULT_S, _BUSY_MAX_S = 0.3, 10.0
_ANSWER_MAX_BYTES = 16 * 1024  # of /swarm/{digest}: a bitmap


@dataclass(eq=False)
class PeerFailed(Exception):
    """No chunk from this peer now; `failure` says what to do about the peer."""

    failure: Failure
    detail: str
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Received:
    content: bytes
    have: int | None  # the sender's bitmap, where it said


@dataclass(frozen=True, slots=True)
class PeerClient:
    """`http` carries the token; it must follow no redirects and use no proxies."""

    http: httpx.AsyncClient
    digest: Digest
    count: int
    rate: Bandwidth
    min_bytes_per_s: float = MIN_PEER_BYTES_PER_S
    answer_within_s: float = _ANSWER_WITHIN_S
    clock: Callable[[], float] = time.monotonic

    async def read(self, address: str, chunk: Chunk) -> Received:
        """The bytes that the peer sends for the chunk, as many as it has, not verified; PeerFailed."""
        url = f"http://{address}{CHUNK_PATH}{chunk.sha256}"
        try:
            async with AsyncExitStack() as stack:
                asking = self.http.stream("GET", url, params={"artifact": self.digest})
                async with asyncio.timeout(self.answer_within_s):
                    response = await stack.enter_async_context(asking)
                self._check(response)
                content = await self._body(response, chunk.size_bytes)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            raise PeerFailed(Failure.BROKEN, repr(error)) from error
        return Received(content, self._told(response.headers.get(HAVE_HEADER)))

    async def have(self, address: str) -> int:
        """What the peer says that it has; PeerFailed."""
        try:
            async with (
                asyncio.timeout(self.answer_within_s),
                self.http.stream("GET", f"http://{address}{HAVE_PATH}{self.digest}") as response,
            ):
                self._check(response)
                if "content-encoding" in response.headers:  # nodes send none; a small block may unpack to a huge one
                    raise PeerFailed(Failure.BROKEN, "its bitmap is compressed")
                document = bytearray()
                async for block in response.aiter_bytes():
                    document += block
                    if len(document) > _ANSWER_MAX_BYTES:
                        raise PeerFailed(Failure.BROKEN, "its bitmap is too long")
            return decode(_HaveAnswer.of(bytes(document)).have, self.count)
        except (
            httpx.HTTPError,
            httpx.InvalidURL,
            msgspec.DecodeError,
            RecursionError,
            ValueError,
            TimeoutError,
        ) as error:
            raise PeerFailed(Failure.BROKEN, repr(error)) from error

    def _check(self, response: httpx.Response) -> None:
        if response.status_code == 503:
            raise PeerFailed(Failure.BUSY, "busy", _busy_s(response.headers.get(RETRY_HEADER)))
        if response.status_code == 404:
            raise PeerFailed(Failure.LACKS, "does not have it")
        if response.status_code != 200:
            raise PeerFailed(Failure.BROKEN, f"answered {response.status_code}")

    async def _body(self, response: httpx.Response, size_bytes: int) -> bytes:
        content = bytearray()
        began_s, waited_s = self.clock(), 0.0
        async for block in response.aiter_raw():
            content += block
            if len(content) > size_bytes:
                raise PeerFailed(Failure.CORRUPT, f"more than the {size_bytes} bytes it should have")
            wait_s = self.rate.reserve(len(block))
            if wait_s > 0:
                await asyncio.sleep(wait_s)
                waited_s += wait_s
            took_s = self.clock() - began_s - waited_s  # what our own rate held back is not the peer's fault
            if took_s > _JUDGED_AFTER_S and len(content) < self.min_bytes_per_s * took_s:
                raise PeerFailed(Failure.SLOW, f"{len(content)} bytes in {took_s:.1f} s")
        return bytes(content)

    def _told(self, header: str | None) -> int | None:
        try:
            return None if header is None else decode(header, self.count)
        except ValueError:  # its chunk is good all the same; the tracker will tell
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
        """The chunk's bytes, not verified; ArtifactError. `sleep` may raise to give it up."""
        content = bytearray()
        for block in self.store.stream(chunk_key(chunk.sha256), chunk.size_bytes):
            content += block
            sleep(self.rate.reserve(len(block)))
        return bytes(content)
