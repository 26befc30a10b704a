"""Garbage collection: mark unreachable objects, and delete them in a later pass if they are still unreachable.

    1 request the roots, list the store, follow every root and pointer
    2 mark: unreached objects become candidates as of now; candidates that were reached are unmarked
    3 of the candidates older than the grace, move those that no open ingest may rely on to `deleting` (one atomic step)
    4 announce the sweep in the store; request the roots and list the pointers again
    5 spare objects that are reached now
    6 delete the others from the store, then from the ledger; end the sweep

Step 4 must follow step 3. A process that names a digest later finds its objects in `deleting` and waits; a digest
that was named earlier is among the roots (GcLedger states the rules). A killed collector leaves objects in
`deleting`, and the next pass continues with them at step 4. Only one collector may run: its caller holds a lock.

A publisher without a ledger (`publish_directory`, which seeds adapters kept in git) is protected by its pointer,
which later sweeps find. If a sweep is running, the publisher waits for its end and then puts what the sweep deleted.

Worked example (test_worked_example): grace 24 h, passes every hour. A version removed at 10:20 is marked at 11:00 and
deleted at 11:00 of the next day. If it is named again in between, its objects are no longer candidates.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import NewType, Protocol

from functions.api.ids import Digest
from functions.artifacts.collect_reach import CollectedStore, ManifestReader, Roots, collected
from functions.artifacts.locations import SWEEPING_KEY

IngestId = NewType("IngestId", str)


class GcLedger(Protocol):
    """Shared record of the objects that ingests rely on and of the objects that are being deleted.

    An object (a chunk or a manifest, by its key) is in one of three states:

        kept --mark--> candidate --deleting--> deleting --deleted--> gone
          ^--------------unmark---'                '------spare-----> kept

    Every ledger obeys these rules, which make deletion safe without a lock around an upload:

      1 `unmark` before relying: an ingest removes its objects from the candidates before it checks that the store has
        them. If objects are already in `deleting`, it must wait for the deletion and then put them again.
      2 `deleting` is one atomic step. It moves only keys that are still candidates and were marked at or before the
        given time, and only if no open ingest began before the mark (it may have relied on them).
      3 `deleting` also removes expired ingests in the same step. `end_ingest` then returns False, and the ingest must
        not name anything.
      4 The order of `begin_ingest` and `mark` is the ledger's own order (a counter), never that of callers' clocks.

    A process names a digest only with a session open, after `unmark` and after checking that the store has its
    objects. The transaction that names it also checks that the session is still open. So objects that an open session
    relies on are not deleted.
    """

    def begin_ingest(self, now_unix_s: float, expires_unix_s: float) -> IngestId:
        """Open a session. Objects marked from now on are not deleted until it ends or expires."""

    def end_ingest(self, ingest: IngestId) -> bool:
        """Close the session. Return False if it had expired: the objects that it relied on may be gone."""

    def unmark(self, keys: Collection[str]) -> frozenset[str]:
        """Remove the keys from the candidates. Return those that are already being deleted."""

    def mark(self, keys: Collection[str], now_unix_s: float) -> None:
        """Make exactly these keys the candidates: new ones as of now; candidates not among them are kept again."""

    def due(self, marked_before_unix_s: float, now_unix_s: float) -> frozenset[str]:
        """Return candidates marked at or before that time, if no open, unexpired ingest began before their mark."""

    def deleting(self, keys: Collection[str], marked_before_unix_s: float, now_unix_s: float) -> frozenset[str]:
        """Move those of `keys` that are still due to `deleting`. Return the moved ones."""

    def in_deletion(self) -> frozenset[str]:
        """Return all keys in `deleting`, including those of a killed collector."""

    def spare(self, keys: Collection[str]) -> None:
        """Move keys that are reachable again from `deleting` back to kept."""

    def deleted(self, keys: Collection[str]) -> None:
        """Remove keys from the ledger whose objects are deleted from the store."""


# Default grace: longer than any pause of a client between uploading an artifact and naming it.
DEFAULT_GRACE_S = 24 * 3600.0
_BATCH_KEYS = 500  # keys per request to the store; a kill leaves at most one batch half done


@dataclass(frozen=True, slots=True)
class Collected:
    """Result of one collection pass; bytes are sizes of objects in the store."""

    reachable: int = 0
    candidates: int = 0
    candidate_bytes: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    spared: int = 0
    missing: tuple[Digest, ...] = ()  # named by a root but not in the store: an error to report


def collect(
    store: CollectedStore,
    roots: Roots,
    ledger: GcLedger,
    *,
    now_unix_s: float,
    grace_s: float = DEFAULT_GRACE_S,
    dry_run: bool = False,
) -> Collected:
    """Run one garbage collection pass over the store and return its result; `dry_run` only counts. StoreUnavailable and
    ArtifactCorrupt end it without further deletions; the next pass continues."""
    *_, (_, result) = steps(store, roots, ledger, now_unix_s=now_unix_s, grace_s=grace_s, dry_run=dry_run)
    return result


def steps(
    store: CollectedStore, roots: Roots, ledger: GcLedger, *, now_unix_s: float, grace_s: float, dry_run: bool = False
) -> Iterator[tuple[str, Collected]]:
    """Run a collection pass and yield each step's name and the result so far, wherever another process may act in
    between. `dry_run` ends it before anything is marked."""
    reader = ManifestReader(store)
    named = frozenset(roots())
    yield "asked for roots", Collected()
    objects = list(store.list(""))
    sizes = {stored.key: stored.size_bytes for stored in objects if collected(stored.key)}
    yield "listed the store", Collected()
    reach = reader.reach(named, objects)
    unreached = sizes.keys() - reach.keys
    result = Collected(
        reachable=len(reach.keys & sizes.keys()),
        candidates=len(unreached),
        candidate_bytes=sum(sizes[key] for key in unreached),
        missing=tuple(sorted(reach.missing)),
    )
    yield "followed the roots", result
    if dry_run:
        return
    ledger.mark(unreached, now_unix_s)
    yield "marked", result
    marked_before_unix_s = now_unix_s - grace_s
    due = ledger.due(marked_before_unix_s, now_unix_s)
    yield "asked what is due", result
    ledger.deleting(due, marked_before_unix_s, now_unix_s)
    doomed = ledger.in_deletion()
    yield "moved to deleting", result
    if doomed:
        store.put(SWEEPING_KEY, b"1")
        yield "said that a sweep begins", result
        for step, swept in _sweep(store, roots, ledger, reader, doomed):
            freed_bytes = sum(sizes.get(key, 0) for key in swept.deleted)
            spared, deleted = len(swept.spared), len(swept.deleted)
            yield step, replace(result, spared=spared, deleted=deleted, deleted_bytes=freed_bytes)
    if doomed or any(stored.key == SWEEPING_KEY for stored in objects):  # also removes the mark of a killed collector
        store.delete([SWEEPING_KEY])


@dataclass(frozen=True, slots=True)
class _Swept:
    spared: frozenset[str] = frozenset()
    deleted: tuple[str, ...] = ()


def _sweep(
    store: CollectedStore, roots: Roots, ledger: GcLedger, reader: ManifestReader, doomed: frozenset[str]
) -> Iterator[tuple[str, _Swept]]:
    """Follow the roots again, return the reachable keys of `doomed` to kept, and delete the others from the store and
    then from the ledger. Yield each step's name and what was spared and deleted so far."""
    named = frozenset(roots())
    yield "asked for roots again", _Swept()
    reach = reader.reach(named, list(store.list("")))
    yield "followed the roots again", _Swept()
    swept = _Swept(spared=doomed & reach.keys)
    ledger.spare(swept.spared)
    yield "spared", swept
    for batch in _batches(sorted(doomed - reach.keys)):
        store.delete(batch)
        yield "deleted from the store", swept
        ledger.deleted(batch)
        swept = replace(swept, deleted=(*swept.deleted, *batch))
        yield "deleted from the ledger", swept


def _batches(keys: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(keys), _BATCH_KEYS):
        yield keys[start : start + _BATCH_KEYS]
