"""How the newest snapshot reaches a process of the data plane: one long poll at the registry, for ever.

The law is static stability. A snapshot is verified before it is believed, kept on disk before it is used, and what
is in hand stays until something better is: losing the registry, or being sent rubbish, changes nothing.

* `load_cached` starts a process without a control plane.
* `run` polls `GET /v1/snapshot?after=<epoch>`: 204 says that ours is the newest, 200 brings a later one.
* Epochs only grow. A registry that lost its state learns from `after` how far the world has got (`EPOCH_FLOOR_HEADER`
  in its answers), and the controller publishes above that.

Neighbours: `functions.registry` answers, `snapshot_file` keeps the cache, `tasks.Supervised` restarts `run`.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from functions.api import snapshot as snapshots
from functions.api.snapshot import SNAPSHOT_MAX_BYTES, Snapshot, SnapshotInvalid
from functions.decisions.catalogue import Catalogue
from functions.fleet import snapshot_file

SNAPSHOT_PATH = "/v1/snapshot"
HASH_HEADER = "x-shoal-snapshot-hash"
EPOCH_HEADER = "x-shoal-snapshot-epoch"
EPOCH_FLOOR_HEADER = "x-shoal-snapshot-epoch-floor"  # the next epoch must be above it

POLL_WAIT_S = 25.0  # below the 30 s after which many proxies drop a silent connection
_CONNECT_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = POLL_WAIT_S + 10.0
_TRANSFER_TIMEOUT_S = POLL_WAIT_S + 60.0  # a document of the largest size at 1 MB/s
_MIN_POLL_INTERVAL_S = 0.5  # a registry that answers 204 without waiting is not hammered
_QUOTED_CHARS = 300

_log = logging.getLogger(__name__)


class SnapshotSourceUnavailable(Exception):
    """The registry gives no answer now; try again later. The snapshot in hand stays."""


class SnapshotRefused(Exception):
    """The registry sent a document that cannot be believed; try again later. The snapshot in hand stays."""


class SnapshotFollower:
    """`on_swap` is called on the event loop with each new catalogue, once `current` has it."""

    def __init__(
        self,
        *,
        client: httpx.AsyncClient,
        registry_url: str,
        token: str,
        cache_file: Path,
        on_swap: Callable[[Catalogue], None],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._url = registry_url.rstrip("/") + SNAPSHOT_PATH
        self._token = token
        self._cache_file = cache_file
        self._on_swap = on_swap
        self._wall_clock = wall_clock
        self.current: Catalogue | None = None
        self.confirmed_unix_s: float | None = None  # when the registry last said that ours is the newest, or sent it
        self.refused_total = 0  # documents and caches that could not be believed
        self.last_problem = ""  # what was wrong last, for people

    def load_cached(self) -> bool:
        """Start from the disk, before any registry has answered; False where there is nothing usable."""
        try:
            snapshot = snapshot_file.read(self._cache_file)
        except SnapshotInvalid as error:
            self.refused_total += 1
            self._report(f"the cached snapshot is not used: {error}")
            return False
        if snapshot is None:
            return False
        self._swap(Catalogue(snapshot, snapshots.content_hash(snapshot)))
        return True

    def age_s(self) -> float | None:
        """Seconds since the registry last vouched for the snapshot in hand; None before the first time."""
        if self.confirmed_unix_s is None:
            return None
        return max(0.0, self._wall_clock() - self.confirmed_unix_s)

    async def run(self) -> None:
        """Follow until the registry fails: SnapshotSourceUnavailable or SnapshotRefused."""
        while True:
            await self.poll()

    async def poll(self) -> bool:
        """One long poll; whether it brought a snapshot."""
        started_s = asyncio.get_running_loop().time()
        answer = await self._ask()
        if answer is None:
            self.confirmed_unix_s = self._wall_clock()
            elapsed_s = asyncio.get_running_loop().time() - started_s
            await asyncio.sleep(max(0.0, _MIN_POLL_INTERVAL_S - elapsed_s))
            return False
        document, named = answer
        try:
            catalogue = await asyncio.to_thread(_verify, document, named, self.current)
        except SnapshotInvalid as error:
            self.refused_total += 1
            self._report(f"the registry's snapshot is refused: {error}")
            raise SnapshotRefused(str(error)) from error
        await self._persist(document)
        self.confirmed_unix_s = self._wall_clock()
        self._swap(catalogue)
        return True

    async def _ask(self) -> tuple[bytes, str] | None:
        """The later document and the hash that names it, or None: nothing newer."""
        after = self.current.epoch if self.current is not None else 0
        request = self._client.stream(
            "GET",
            self._url,
            params={"after": after, "wait_s": POLL_WAIT_S},
            headers={"authorization": f"Bearer {self._token}", "accept-encoding": "identity"},
            timeout=httpx.Timeout(_CONNECT_TIMEOUT_S, read=_ANSWER_TIMEOUT_S),
        )
        try:
            async with asyncio.timeout(_TRANSFER_TIMEOUT_S), request as response:
                if response.status_code == 204:
                    return None
                document = await _read_bounded(response)
                if response.status_code != 200:
                    quoted = document.decode("utf-8", "replace")[:_QUOTED_CHARS]
                    raise SnapshotSourceUnavailable(f"{self._url} answered {response.status_code}: {quoted}")
                return document, response.headers.get(HASH_HEADER, "")
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise SnapshotSourceUnavailable(f"{self._url} cannot be read: {reason}") from error

    async def _persist(self, document: bytes) -> None:
        try:
            await asyncio.to_thread(snapshot_file.write, self._cache_file, document)
        except OSError as error:
            # A full disk must not keep a good snapshot from being served; only the next cold start is poorer.
            self._report(f"the snapshot could not be kept at {self._cache_file}: {error}")

    def _swap(self, catalogue: Catalogue) -> None:
        self.current = catalogue
        _log.info("snapshot epoch %d (%s) in use", catalogue.epoch, catalogue.snapshot_hash)
        self._on_swap(catalogue)

    def _report(self, problem: str) -> None:
        self.last_problem = problem
        _log.error("%s", problem)


def _verify(document: bytes, named: str, current: Catalogue | None) -> Catalogue:
    """The catalogue of a document that is what its name says and later than ours; SnapshotInvalid otherwise."""
    snapshot: Snapshot = snapshots.decode(document)
    actual = snapshots.content_hash(snapshot)
    if actual != named:
        raise SnapshotInvalid(f"its content is {actual}, but {HASH_HEADER} says {named or 'nothing'}")
    if current is not None and snapshot.epoch <= current.epoch:
        raise SnapshotInvalid(f"its epoch {snapshot.epoch} is not after ours, {current.epoch}")
    return Catalogue(snapshot, actual)


async def _read_bounded(response: httpx.Response) -> bytes:
    parts: list[bytes] = []
    size_bytes = 0
    async for part in response.aiter_bytes():
        size_bytes += len(part)
        if size_bytes > SNAPSHOT_MAX_BYTES:
            raise SnapshotSourceUnavailable(f"the answer is over {SNAPSHOT_MAX_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)
