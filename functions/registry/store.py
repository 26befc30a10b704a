"""The published snapshot: one at a time, durable before followers see it, with epochs that only grow.

An invalid file is renamed to `*.refused`, and the registry starts without a snapshot. The controller publishes again;
meanwhile the data plane uses its own copy.

The floor: followers send the epoch that they have in `after`. If a follower's epoch is higher than ours, this
registry has lost state. Followers would ignore a snapshot at or below their epoch, so the next epoch must be higher.
A follower may be at most `MAX_LEAD` ahead, so that one wrong request cannot use up the epochs.

Neighbours: `feed` serves the snapshot, whole or as a delta; `sharing` exchanges it with other registries of the
database; `fence` rejects former leaders.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from functions.api import snapshot_document as documents
from functions.api.ids import ModelId, PoolName
from functions.api.snapshot import Snapshot, SnapshotInvalid
from functions.api.snapshot_comparison import Changes
from functions.api.snapshot_entries import AnyEntry, ModelEntry
from functions.api.snapshot_index import Indexed, applied, changes_between, empty, indexed
from functions.decisions.routing.placement import model_of
from functions.fleet.pauses import PATIENT_SLICE_S, pause_between_slices
from functions.fleet.snapshot_file import SnapshotFile
from functions.fleet.snapshot_notices import ALL_POOLS, MAX_POOLS, SnapshotNotice
from functions.fleet.snapshots import MAX_GATEWAYS
from functions.registry.feed import MAX_DELTA_ENTRIES, Feed
from functions.registry.fence import Fence

# View of one pool: the part of the snapshot that an agent follows, as a snapshot of its own.
#
# It holds the pool, the pool whose models it serves, these models and all rollouts. It has no tenants, keys or other
# pools' models. So of 5,000 agents only those that load a new adapter receive its change, and none receives a new
# tenant. A view's epoch is that of the publication which last changed it.
#
# Neighbours: `SnapshotStore` has one feed per followed view.


def view_of(content: Indexed, pool: PoolName) -> Indexed:
    """Return the part of the content that the pool's replicas need, under the content's epoch: the pool, the models
    that it serves and all rollout policies."""
    served = _served_in(content, pool)
    changes: dict[str, dict[str, AnyEntry | None]] = {
        "models": {model.id: model for model in content.snapshot.models if model.pool == served},
        "rollouts": dict(content.tables.rollouts),
    }
    changes["pools"] = {name: content.tables.pools[name] for name in (pool, served) if name in content.tables.pools}
    return applied(empty(), content.snapshot, changes)


def advance_view(view: Feed, content: Indexed, changes: Changes, pool: PoolName) -> None:
    """Advance the pool's view to the new content if the changes concern it; otherwise it keeps its epoch."""
    served = _served_in(content, pool)
    if served != _served_in(view.content, pool):  # the pool now serves another model, so all its models differ
        mine = changes_between(view.content, view_of(content, pool))
    else:
        mine = _concerning(view.content, changes, pool, served)
    if any(mine.values()):
        view.advance(applied(view.content, content.snapshot, mine), mine)


def _served_in(content: Indexed, pool: PoolName) -> PoolName:
    """Return the pool whose models its replicas serve: the pool itself, unless it names another one."""
    entry = content.tables.pools.get(pool)
    return model_of(entry) if entry is not None else pool


def pools_concerned(before: Indexed, changes: Changes) -> tuple[str, ...]:
    """Return the names of the pools whose views change, sorted; `*` alone for all pools or for too many to name."""
    if changes.get("rollouts"):
        return (ALL_POOLS,)
    pools: set[str] = set(changes.get("pools", {}))
    for name, entry in changes.get("models", {}).items():
        old = before.tables.models.get(ModelId(name))
        pools.update(model.pool for model in (old, entry) if isinstance(model, ModelEntry))
    pools.update(name for name, entry in before.tables.pools.items() if entry.model in pools)
    return tuple(sorted(pools)) if len(pools) <= MAX_POOLS else (ALL_POOLS,)


def _concerning(
    view: Indexed, changes: Changes, pool: PoolName, served: PoolName
) -> dict[str, dict[str, AnyEntry | None]]:
    models: dict[str, AnyEntry | None] = {}
    for name, entry in changes.get("models", {}).items():
        if isinstance(entry, ModelEntry) and entry.pool == served:
            models[name] = entry
        elif name in view.tables.models:
            models[name] = None  # deleted, or moved to another pool
    pools = {name: entry for name, entry in changes.get("pools", {}).items() if name in (pool, served)}
    return {"models": models, "pools": pools, "rollouts": dict(changes.get("rollouts", {}))}


MAX_LEAD = 10_000_000  # more than a busy fleet publishes in years; a hundredth of all epochs
MAX_VIEWS = 1000  # views kept in memory; further ones are built for each request
GATEWAY_SILENT_S = 45.0  # a gateway polls every 25 s, and a slow answer takes 10 s more
_NAME_MAX_CHARS = 128
_log = logging.getLogger(__name__)


class EpochTaken(Exception):
    """The epoch is not above the published or the highest seen one: publish with a higher epoch."""


class StoreFailed(Exception):
    """The disk write failed and nothing changed. Try again after repairing the disk."""


class TooManyWaiters(Exception):
    """The limit of long polls is reached; try again later."""


@dataclass(frozen=True, slots=True)
class Published:
    content: Indexed

    @property
    def snapshot(self) -> Snapshot:
        return self.content.snapshot

    @property
    def snapshot_hash(self) -> str:
        return self.content.content_hash

    @property
    def epoch(self) -> int:
        return self.content.snapshot.epoch


Share = Callable[[Indexed, bytes, str], None]
"""Function that gives other registries the content, by its delta for the base of that hash if there is one. Blocks.
Raises EpochTaken."""


def _share_with_none(content: Indexed, delta: bytes, base_hash: str) -> None:
    """Do nothing: there is no other registry to share with."""


class FollowingGateways:
    """Gateways that recently requested a snapshot, by name. Owned by one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_s = clock()
        self._heard_s: dict[str, float] = {}

    def record_request(self, gateway: str) -> None:
        if not 0 < len(gateway) <= _NAME_MAX_CHARS:
            return
        now_s = self._clock()
        self._heard_s.pop(gateway, None)  # orders the dict by the last request
        self._heard_s[gateway] = now_s
        while len(self._heard_s) > MAX_GATEWAYS or self._oldest_s() < now_s - GATEWAY_SILENT_S:
            del self._heard_s[next(iter(self._heard_s))]

    def count_recent(self) -> int | None:
        """Return the number of gateways that requested a snapshot in the last GATEWAY_SILENT_S seconds, or None until
        this registry has run that long."""
        now_s = self._clock()
        if now_s < self._began_s + GATEWAY_SILENT_S:
            return None
        return sum(heard_s >= now_s - GATEWAY_SILENT_S for heard_s in self._heard_s.values())

    def _oldest_s(self) -> float:
        return self._heard_s[next(iter(self._heard_s))]


class SnapshotStore:
    """Current snapshot and its feeds, owned by one event loop. `on_published` is called after each publication."""

    def __init__(
        self,
        file: Path,
        max_waiters: int = 10_000,
        on_published: Callable[[SnapshotNotice], None] = lambda notice: None,
    ) -> None:
        self.closing = False
        self.waiters = 0
        self.feed = Feed()
        self.gateways = FollowingGateways()
        self._views: dict[PoolName, Feed] = {}
        self._file = SnapshotFile(file)
        self.fence = Fence(file.with_name(file.name + ".fence"))
        self._max_waiters = max_waiters
        self._highest_heard = 0
        self._publishing = asyncio.Lock()
        self._on_published = on_published
        self._share: Share = _share_with_none

    def set_share(self, give: Share) -> None:
        """Set the function that writes each publication for other registries before followers see it (`sharing`)."""
        self._share = give

    @property
    def current(self) -> Published | None:
        return Published(self.feed.content) if self.epoch else None

    @property
    def epoch(self) -> int:
        return self.feed.epoch

    @property
    def epoch_floor(self) -> int:
        """Epoch above which the next publication must be: the highest published here or reported by a follower."""
        return max(self.epoch, self._highest_heard)

    def load(self) -> None:
        """Load the snapshot and the fence that the former process stored. An invalid snapshot is renamed and the store
        stays empty; errors are logged, not raised."""
        try:
            self.fence.load()
        except (OSError, ValueError) as error:  # the snapshot is not affected and stays
            _log.error("the stored leadership cannot be read; former leaders pass until a leader publishes: %s", error)
        try:
            content = self._file.load()
        except SnapshotInvalid as error:
            path = self._file.path
            aside = path.with_name(path.name + ".refused")
            with contextlib.suppress(OSError):  # the next publication will report the failed disk
                path.replace(aside)
            _log.error("the stored snapshot is invalid and was renamed to %s: %s", aside.name, error)
            return
        if content is not None:
            self.feed.advance(content, {})
            _log.info("snapshot epoch %d (%s) loaded", self.epoch, content.content_hash)

    def record_follower_epoch(self, after: int) -> None:
        """Record the epoch that a follower has, so that the next publication is above it; one too far ahead is
        ignored."""
        if self._highest_heard < after <= self.epoch_floor + MAX_LEAD:
            self._highest_heard = after

    def view(self, pool: PoolName) -> Feed:
        """Return the feed of one pool's part of the snapshot; an unknown pool, or one beyond MAX_VIEWS, gets a new one
        that is not stored."""
        if pool not in self._views:
            feed = Feed(view_of(self.feed.content, pool))
            if len(self._views) >= MAX_VIEWS or pool not in self.feed.content.tables.pools:
                return feed
            self._views[pool] = feed
        return self._views[pool]

    async def publish(self, snapshot: Snapshot) -> Published:
        """Publish the snapshot and return its content. Raises EpochTaken or StoreFailed, after which nothing has
        changed."""
        return await self._publish(lambda base: indexed(snapshot, base, pause_between_slices(PATIENT_SLICE_S)), 0)

    async def publish_document(self, chunks: Iterable[bytes], fence: int = 0) -> Published:
        """Publish a document, whole or a delta, under the leadership `fence`. Raises EpochTaken, StoreFailed,
        SnapshotInvalid, BaseMissing or Fenced, after which nothing is published."""
        return await self._publish(
            lambda base: documents.read(chunks, base, pause_between_slices(PATIENT_SLICE_S)), fence
        )

    async def _publish(self, read: Callable[[Indexed], Indexed], fence: int) -> Published:
        async with self._publishing:
            self.fence.check(fence)
            base = self.feed.content
            content = await asyncio.to_thread(read, base)
            epoch = content.snapshot.epoch
            if epoch <= self.epoch_floor:
                raise EpochTaken(
                    f"epoch {epoch} is not after the current epoch {self.epoch}"
                    f" (the next one must be above {self.epoch_floor})"
                )
            try:
                changes = await asyncio.to_thread(self._persist, base, content, fence)
            except OSError as error:
                raise StoreFailed(f"the snapshot could not be stored: {error.strerror}") from error
            self._advance(content, changes)
            return Published(content)

    async def adopt(self, read: Callable[[Indexed], Indexed]) -> None:
        """Adopt the content that `read` makes of the current one, another registry's publication, if its epoch is
        later. Raises SnapshotInvalid or StoreFailed."""
        async with self._publishing:
            base = self.feed.content
            content = await asyncio.to_thread(read, base)
            if content.snapshot.epoch <= self.epoch:
                return
            try:
                changes = await asyncio.to_thread(self._write, base, content)
            except OSError as error:
                raise StoreFailed(f"the snapshot could not be stored: {error.strerror}") from error
            self._advance(content, changes)

    def _persist(self, base: Indexed, content: Indexed, fence: int) -> Changes:
        """Admit the leadership, share the content with other registries, write it to disk, and return its changes.
        Blocks."""
        self.fence.admit(fence)
        return self._write(base, content, self._share)

    def _write(self, base: Indexed, content: Indexed, share: Share = _share_with_none) -> Changes:
        changes = changes_between(base, content)
        is_small = sum(map(len, changes.values())) <= MAX_DELTA_ENTRIES
        lines = documents.delta_lines(content.snapshot, base.content_hash, changes) if is_small else ()
        delta = b"".join(lines)
        share(content, delta, base.content_hash)
        self._file.store(content, delta, base.content_hash, pause_between_slices(PATIENT_SLICE_S))
        return changes

    def _advance(self, content: Indexed, changes: Changes) -> None:
        concerned = pools_concerned(self.feed.content, changes)
        self.feed.advance(content, changes)
        for pool in [pool for pool in self._views if pool not in content.tables.pools]:
            self._views.pop(pool).wake_waiters()
        for pool, view in self._views.items():
            advance_view(view, content, changes, pool)
        _log.info("snapshot epoch %d (%s) published", self.epoch, content.content_hash)
        self._on_published(SnapshotNotice(self.epoch, concerned))

    @contextlib.contextmanager
    def reserve_waiter(self) -> Iterator[None]:
        """Count a long poll in the block. Raises TooManyWaiters at the limit."""
        if self.waiters >= self._max_waiters:
            raise TooManyWaiters
        self.waiters += 1
        try:
            yield
        finally:
            self.waiters -= 1

    async def wait_beyond(self, after: int, timeout_s: float, pool: PoolName | None = None) -> Feed | None:
        """Return the feed, of one pool if given, once its epoch is above `after`; None at the timeout or when the store
        closes."""
        ends_s = asyncio.get_running_loop().time() + timeout_s
        while True:
            feed = self.feed if pool is None else self.view(pool)
            if feed.epoch > after:
                return feed
            left_s = ends_s - asyncio.get_running_loop().time()
            if self.closing or left_s <= 0:
                return None
            # A pool that does not exist yet has no feed of its own; any publication may create it.
            waits_for = feed if pool is None or pool in self._views else self.feed
            await waits_for.wait_for_change(left_s)

    def close(self) -> None:
        """End all present and future waits."""
        self.closing = True
        for feed in (self.feed, *self._views.values()):
            feed.wake_waiters()
