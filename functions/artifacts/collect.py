"""Garbage collection: mark what nothing reaches, and delete it in a later pass if nothing reaches it still.

    1 ask for the roots, list the store, follow every root and pointer
    2 mark: what was not reached is a candidate as of now; candidates that were reached are none any more
    3 of the candidates older than the grace, move those that no open ingest may rely on to `deleting` (one atomic step)
    4 say in the store that a sweep begins; ask for the roots and list the pointers again
    5 spare what is reached after all
    6 delete the rest from the store, then from the ledger; the sweep is over

Step 4 comes after step 3 on purpose: whoever names a digest later finds its objects being deleted and waits, whoever
named it before is among the roots (the laws are GcLedger's). A collector that is killed leaves objects in `deleting`;
the next pass takes them up at step 4. One collector at a time: its caller holds a lock. A publisher without a ledger
(`publish_directory`, which seeds adapters kept in git) is protected by its pointer: a sweep that begins later finds it;
of one that is under way the publisher waits for the end, and then puts what it took.

Worked example (test_worked_example): grace 24 h, passes every hour. A version removed at 10:20 is marked at 11:00 and
deleted at 11:00 of the next day; named again in between, its objects are candidates no longer.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import NewType, Protocol

from functions.api.ids import Digest
from functions.artifacts.collect_reach import CollectedStore, Reader, Roots, collected
from functions.artifacts.locations import SWEEPING_KEY

IngestId = NewType("IngestId", str)


class GcLedger(Protocol):
    """What collection and ingests agree on: who relies on which object, and which objects are being deleted.

    An object (a chunk or a manifest, by its key) is in one of three states:

        kept --mark--> candidate --deleting--> deleting --deleted--> gone
          ^--------------unmark---'                '------spare-----> kept

    The laws, which every ledger keeps and which make deleting safe without a lock around an upload:
      1 `unmark` before relying: an ingest takes its objects out of the candidates before it asks the store whether they
        are there; what is already `deleting` it must wait for, then put again.
      2 `deleting` is one atomic step: it moves only keys that are still candidates, that were marked at or before the
        time given, and that no open ingest is older than (it may have relied on them before they were marked).
      3 An ingest past its expiry is removed by `deleting`, in the same step; its `end_ingest` then answers False and it
        must not name anything.
      4 The order of `begin_ingest` and `mark` is the ledger's own order (a counter), never that of callers' clocks.

    Whoever names a digest does so with a session open, after `unmark` and after asking the store for its objects, and
    in one transaction with the question whether that session is open still: what an open session relies on is not
    deleted.
    """

    def begin_ingest(self, now_unix_s: float, expires_unix_s: float) -> IngestId:
        """Open a session: nothing marked from now on is deleted until it ends or expires."""

    def end_ingest(self, ingest: IngestId) -> bool:
        """Close the session; False where it had expired, so that what it relied on may be gone."""

    def unmark(self, keys: Collection[str]) -> frozenset[str]:
        """Take the keys out of the candidates; those that are being deleted now, which cannot be."""

    def mark(self, keys: Collection[str], now_unix_s: float) -> None:
        """These and no others are unreachable: new ones become candidates as of now, candidates not among them kept."""

    def due(self, marked_before_unix_s: float, now_unix_s: float) -> frozenset[str]:
        """Candidates marked at or before that time and younger than every open, unexpired ingest's beginning: none
        of those sessions began before the key was marked."""

    def deleting(self, keys: Collection[str], marked_before_unix_s: float, now_unix_s: float) -> frozenset[str]:
        """Move those of `keys` that are still due to `deleting`; which ones were moved."""

    def in_deletion(self) -> frozenset[str]:
        """Everything in `deleting`: after a collector was killed, more than the caller moved."""

    def spare(self, keys: Collection[str]) -> None:
        """Reached again after all: from `deleting` back to kept."""

    def deleted(self, keys: Collection[str]) -> None:
        """They are gone from the store: forget them."""


# Longer than any registration, rollout or pause of a client between uploading and naming what it uploaded.
DEFAULT_GRACE_S = 24 * 3600.0
_BATCH_KEYS = 500  # one request to the store; what a kill leaves half done


@dataclass(frozen=True, slots=True)
class Collected:
    """What one pass saw and did; bytes are those of objects in the store."""

    reachable: int = 0
    candidates: int = 0
    candidate_bytes: int = 0
    deleted: int = 0
    deleted_bytes: int = 0
    spared: int = 0
    missing: tuple[Digest, ...] = ()  # named by a root, and not in the store: somebody should know


def collect(
    store: CollectedStore,
    roots: Roots,
    ledger: GcLedger,
    *,
    now_unix_s: float,
    grace_s: float = DEFAULT_GRACE_S,
    dry_run: bool = False,
) -> Collected:
    """One pass. StoreUnavailable and ArtifactCorrupt end it before anything more is deleted; the next goes on."""
    *_, (_, result) = steps(store, roots, ledger, now_unix_s=now_unix_s, grace_s=grace_s, dry_run=dry_run)
    return result


def steps(
    store: CollectedStore, roots: Roots, ledger: GcLedger, *, now_unix_s: float, grace_s: float, dry_run: bool = False
) -> Iterator[tuple[str, Collected]]:
    """The pass cut wherever another process may act in between: each step's name and the result so far."""
    reader = Reader(store)
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
    if doomed or any(stored.key == SWEEPING_KEY for stored in objects):  # also what a killed collector left
        store.delete([SWEEPING_KEY])


@dataclass(frozen=True, slots=True)
class _Swept:
    spared: frozenset[str] = frozenset()
    deleted: tuple[str, ...] = ()


def _sweep(
    store: CollectedStore, roots: Roots, ledger: GcLedger, reader: Reader, doomed: frozenset[str]
) -> Iterator[tuple[str, _Swept]]:
    """Steps 4 to 6, for everything that is in `deleting`."""
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
