"""Delivery of snapshots to a process of the data plane: an endless long poll at the registry.

The principle is static stability. A snapshot is verified before it is stored, and stored on disk before it is used.
The current snapshot stays until a better one arrives, so losing the registry or receiving garbage changes nothing.

* `load_cached` starts a process without a control plane.
* `run` polls `GET /v1/snapshot?after=<epoch>` with the hash of the current content: 204 means that nothing is newer,
  200 has the changes since, or the whole. Either way the result must have the hash that the response states.
* `handle_notice` restarts the poll: a notice on the bus says that a later epoch exists, and the poll in flight may be
  lost.
* Epochs only grow. A registry that lost its state learns from `after` which epoch followers have (`EPOCH_FLOOR_HEADER`
  in its responses), and the controller publishes above that.

Reading, verifying and storing run in a thread, in slices that let the event loop run in between. The swap itself is
one assignment.

Neighbours: `functions.registry` responds, `snapshot_file` stores the cache, `tasks.Supervised` restarts `run`.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from functions.api import snapshot_document as documents
from functions.api.ids import PoolName
from functions.api.snapshot import EPOCH_MAX, SNAPSHOT_MAX_BYTES, SnapshotInvalid
from functions.api.snapshot_index import Indexed, empty
from functions.decisions.catalogue import Catalogue
from functions.fleet.pauses import pause_between_slices
from functions.fleet.role_credentials import Bearer, current_secret
from functions.fleet.snapshot_file import SnapshotFile
from functions.fleet.snapshot_notices import ALL_POOLS, SnapshotNotice

SNAPSHOT_PATH = "/v1/snapshot"
HASH_HEADER = "x-shoal-snapshot-hash"
EPOCH_HEADER = "x-shoal-snapshot-epoch"
EPOCH_FLOOR_HEADER = "x-shoal-snapshot-epoch-floor"  # the next epoch must be above it
BASE_HEADER = "x-shoal-snapshot-base"  # hash of the caller's content
GATEWAY_HEADER = "x-shoal-gateway"  # name of a gateway that follows
# number of gateways that follow; absent if the registry has not run for long enough
GATEWAYS_HEADER = "x-shoal-gateways"
FENCE_HEADER = "x-shoal-fence"  # a publisher's leadership; a number lower than one the registry has seen is refused

MAX_GATEWAYS = 10_000
POLL_WAIT_S = 25.0  # below the 30 s after which many proxies drop a silent connection
_ANSWER_TIMEOUT_S = POLL_WAIT_S + 10.0
_TIMEOUT = httpx.Timeout(5.0, read=_ANSWER_TIMEOUT_S)
_TRANSFER_TIMEOUT_S = 60.0  # a document of the largest size at 1 MB/s
_TIME_KEPT_EVERY_S = 60.0
_MIN_POLL_INTERVAL_S = 0.5  # limits the rate of polls if a registry answers 204 without waiting
NEWS_GRACE_S = 1.0  # when a notice arrives, the answer to the poll in flight is usually on its way
_SMALL_BYTES = 1024 * 1024  # largest delta that is appended; beyond, the cache is rewritten
_QUOTED_CHARS = 300

_log = logging.getLogger(__name__)


class SnapshotSourceUnavailable(Exception):
    """The registry does not answer now; try again later. The current snapshot stays."""


class SnapshotRefused(Exception):
    """The registry sent a document that cannot be trusted; try again later. The current snapshot stays."""


@dataclass(frozen=True, slots=True)
class _PollAnswer:
    chunks: list[bytes]
    named: str  # the content hash that the registry states


class SnapshotFollower:
    """Follow snapshots. `on_swap` is called on the event loop with each new catalogue, after `current` is set.

    With a `pool`, only that pool's part is followed. With a `gateway_id` the registry counts this process among the
    gateways, and `on_gateways` receives their number. `on_confirmed` receives an epoch as of which the current
    content is the newest: a pool's part stays the same through many epochs.
    """

    def __init__(
        self,
        *,
        client: httpx.AsyncClient,
        registry_url: str,
        token: Bearer,
        cache_file: Path,
        on_swap: Callable[[Catalogue], None],
        on_confirmed: Callable[[int], None] = lambda epoch: None,
        pool: PoolName | None = None,
        wall_clock: Callable[[], float] = time.time,
        gateway_id: str = "",
        on_gateways: Callable[[int], None] = lambda gateways: None,
    ) -> None:
        self._gateway_id = gateway_id
        self._on_gateways = on_gateways
        self._client = client
        self._url = registry_url.rstrip("/") + SNAPSHOT_PATH
        self._token = token
        self._pool = pool
        self._cache = SnapshotFile(cache_file)
        self._on_swap = on_swap
        self._on_confirmed = on_confirmed
        self._wall_clock = wall_clock
        self._content: Indexed = empty()
        self._needs_whole = False  # the last delta was invalid
        self._unkept = False  # the current content is not on the disk
        self._waiting: asyncio.Timeout | None = None  # set while a poll waits for the response
        self.current: Catalogue | None = None
        self.confirmed_unix_s: float | None = None  # when the registry last confirmed or sent the current content
        self._time_kept_unix_s = 0.0
        self.refused_total = 0  # documents and caches that could not be trusted
        self.last_problem = ""  # last problem, for people; empty again after a new snapshot

    def load_cached(self) -> bool:
        """Start from the snapshot cached on the disk, before any registry has answered; return False if there is none
        or it is unusable."""
        try:
            content = self._cache.load()
        except SnapshotInvalid as error:
            self.refused_total += 1
            self._report(f"the cached snapshot is not used: {error}")
            return False
        if content is None:
            return False
        self.confirmed_unix_s = self._cache.confirmed_unix_s()
        self._swap(content)
        return True

    def age_s(self) -> float | None:
        """Return seconds since the registry last confirmed the current snapshot; None before the first time."""
        if self.confirmed_unix_s is None:
            return None
        return max(0.0, self._wall_clock() - self.confirmed_unix_s)

    def handle_notice(self, notice: SnapshotNotice) -> None:
        """Make the poll in flight restart soon if the notice is for this process and a later epoch. It waits
        NEWS_GRACE_S, because the response to that poll is usually on its way."""
        concerns_us = self._pool is None or ALL_POOLS in notice.pools or self._pool in notice.pools
        waiting = self._waiting
        if (
            concerns_us
            and notice.epoch > self._content.snapshot.epoch
            and waiting is not None
            and not waiting.expired()
        ):
            soon_s = asyncio.get_running_loop().time() + NEWS_GRACE_S
            waiting.reschedule(min(soon_s, waiting.when() or soon_s))  # further notices do not delay it

    async def run(self) -> None:
        """Poll until the registry fails, which raises SnapshotSourceUnavailable or SnapshotRefused."""
        while True:
            await self.poll()

    async def poll(self) -> bool:
        """Run one long poll; store and apply a snapshot that it brings, and return True if it brought one. Raises
        SnapshotSourceUnavailable or SnapshotRefused."""
        started_s = asyncio.get_running_loop().time()
        base = self._content
        answer = await self._fetch_newer(base)
        if answer is None:
            await self._store_confirmation_time()
            elapsed_s = asyncio.get_running_loop().time() - started_s
            await asyncio.sleep(max(0.0, _MIN_POLL_INTERVAL_S - elapsed_s))
            return False
        try:
            content = await asyncio.to_thread(_verified, answer, base)
        except SnapshotInvalid as error:
            self.refused_total += 1
            self._needs_whole = True
            self._report(f"the registry's snapshot is refused: {error}")
            raise SnapshotRefused(str(error)) from error
        await self._persist(content, answer, base)
        self._needs_whole = False
        self.last_problem = "" if not self._unkept else self.last_problem
        self._record_confirmation(content.snapshot.epoch)
        self._swap(content)
        return True

    async def _fetch_newer(self, base: Indexed) -> _PollAnswer | None:
        """Return the registry's answer with changes since the base; None if there are none, or the poll must be sent
        again. Raises SnapshotSourceUnavailable."""
        request = self._client.build_request(
            "GET", self._url, params=self._params(base), headers=self._headers(base), timeout=_TIMEOUT
        )
        try:
            response = await self._until_answered(request)
            if response is None:
                return None
            async with asyncio.timeout(_TRANSFER_TIMEOUT_S), contextlib.aclosing(response):
                return await self._read(response)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise SnapshotSourceUnavailable(f"{self._url} cannot be read: {reason}") from error

    async def _until_answered(self, request: httpx.Request) -> httpx.Response | None:
        """Return the response's head; None if a notice arrived and the response did not follow. TimeoutError after
        _ANSWER_TIMEOUT_S."""
        ends_s = asyncio.get_running_loop().time() + _ANSWER_TIMEOUT_S
        try:
            async with asyncio.timeout_at(ends_s) as self._waiting:
                return await self._client.send(request, stream=True)
        except TimeoutError:
            if asyncio.get_running_loop().time() >= ends_s:
                raise
            return None
        finally:
            self._waiting = None

    async def _read(self, response: httpx.Response) -> _PollAnswer | None:
        if 1 <= (gateways := _number_of(response, GATEWAYS_HEADER)) <= MAX_GATEWAYS:
            self._on_gateways(gateways)
        if response.status_code == 204:
            self._record_confirmation(min(_number_of(response, EPOCH_HEADER), EPOCH_MAX))
            return None
        chunks = await _read_bounded(response)
        if response.status_code != 200:
            quoted = b"".join(chunks).decode("utf-8", "replace")[:_QUOTED_CHARS]
            raise SnapshotSourceUnavailable(f"{self._url} answered {response.status_code}: {quoted}")
        return _PollAnswer(chunks, response.headers.get(HASH_HEADER, ""))

    def _params(self, base: Indexed) -> dict[str, str | int | float]:
        pool = {"pool": self._pool} if self._pool is not None else {}
        return {"after": base.snapshot.epoch, "wait_s": POLL_WAIT_S, **pool}

    def _headers(self, base: Indexed) -> dict[str, str]:
        headers = {"authorization": f"Bearer {current_secret(self._token)}", "accept-encoding": "identity"}
        headers |= {GATEWAY_HEADER: self._gateway_id} if self._gateway_id else {}
        return headers if self._needs_whole or not base.snapshot.epoch else headers | {BASE_HEADER: base.content_hash}

    async def _persist(self, content: Indexed, answer: _PollAnswer, base: Indexed) -> None:
        delta = b"".join(answer.chunks) if sum(map(len, answer.chunks)) <= _SMALL_BYTES else b""
        try:
            await asyncio.to_thread(self._cache.store, content, delta, base.content_hash, pause_between_slices())
            self._unkept = False
        except OSError as error:
            # A full disk must not prevent a good snapshot from being served; only the next cold start is affected.
            self._unkept = True
            self._report(f"the snapshot could not be stored at {self._cache.path}: {error}")

    async def _store_confirmation_time(self) -> None:
        """Store the time of the last confirmation, at most once a minute, so that it survives a restart."""
        confirmed_unix_s = self.confirmed_unix_s
        if confirmed_unix_s is not None and confirmed_unix_s - self._time_kept_unix_s >= _TIME_KEPT_EVERY_S:
            self._time_kept_unix_s = confirmed_unix_s
            await asyncio.to_thread(self._cache.record_confirmation, confirmed_unix_s)

    def _record_confirmation(self, epoch: int) -> None:
        self.confirmed_unix_s = self._wall_clock()
        self._on_confirmed(max(epoch, self._content.snapshot.epoch))

    def _swap(self, content: Indexed) -> None:
        self._content = content
        self.current = catalogue = Catalogue.from_indexed(content)
        _log.info("snapshot epoch %d (%s) in use", catalogue.epoch, catalogue.snapshot_hash)
        self._on_swap(catalogue)

    def _report(self, problem: str) -> None:
        self.last_problem = problem
        _log.error("%s", problem)


def _verified(answer: _PollAnswer, base: Indexed) -> Indexed:
    """Return the content of a document that has the stated hash and a later epoch; SnapshotInvalid otherwise."""
    content = documents.read(answer.chunks, base, pause_between_slices())
    if content.content_hash != answer.named:
        says = answer.named or "nothing"
        raise SnapshotInvalid(f"its content is {content.content_hash}, but {HASH_HEADER} says {says}")
    if content.snapshot.epoch <= base.snapshot.epoch:
        raise SnapshotInvalid(f"its epoch {content.snapshot.epoch} is not after ours, {base.snapshot.epoch}")
    return content


def _number_of(response: httpx.Response, header: str) -> int:
    """Return the whole number in a response header; 0 if it is missing, malformed or of 20 digits or more."""
    text = response.headers.get(header, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0


async def _read_bounded(response: httpx.Response) -> list[bytes]:
    """Return the body in pieces, since joining 30 MB would block the event loop; SnapshotSourceUnavailable if it is
    over SNAPSHOT_MAX_BYTES."""
    chunks: list[bytes] = []
    size_bytes = 0
    async for part in response.aiter_bytes():
        size_bytes += len(part)
        if size_bytes > SNAPSHOT_MAX_BYTES:
            raise SnapshotSourceUnavailable(f"the answer is over {SNAPSHOT_MAX_BYTES} bytes")
        chunks.append(part)
    return chunks
