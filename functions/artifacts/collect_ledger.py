"""What collecting garbage and ingesting agree on: who relies on which object, and which objects are being deleted.

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

Whoever names a digest does so with a session open, after `unmark` and after asking the store for its objects, and in
one transaction with the question whether that session is open still: what an open session relies on is not deleted.
"""

from collections.abc import Collection
from typing import NewType, Protocol

IngestId = NewType("IngestId", str)


class GcLedger(Protocol):
    """Each call is one transaction; all may block. Keys are store keys (`chunks/sha256/…`, `manifests/sha256/…`)."""

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
