"""A stream of snapshots for followers: the current content, its recent changes, and a wait for the next one.

A follower names the content that it holds. If that is among the last steps, it receives the changes since then,
otherwise the whole document. Both are encoded once and shared by all followers; the whole document only on request.

Neighbours: `store` advances the feeds; `snapshot_routes` answers from them.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from functions.api import snapshot_document as documents
from functions.api.snapshot_comparison import Changes
from functions.api.snapshot_entries import AnyEntry
from functions.api.snapshot_index import Indexed, empty
from functions.decisions.catalogue import Catalogue
from functions.fleet.pauses import PATIENT_SLICE_S, pause_between_slices

MAX_STEPS = 64
MAX_DELTA_ENTRIES = 20_000  # per answer, and over all steps together; beyond that a whole document costs no more
_PIECE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class _Step:
    """Changes of one publication: old and new entry by section and name, None if there is no such entry."""

    base_hash: str
    changed: Mapping[str, Mapping[str, tuple[AnyEntry | None, AnyEntry | None]]]

    @property
    def size(self) -> int:
        return sum(map(len, self.changed.values()))


class Feed:
    """Current content with its last steps. Owned by one event loop."""

    def __init__(self, content: Indexed | None = None) -> None:
        self.content = content or empty()
        self._steps: deque[_Step] = deque(maxlen=MAX_STEPS)
        self._deltas: dict[str, bytes | None] = {}  # by base hash, for the current content
        self._whole: tuple[Indexed, list[bytes]] | None = None
        self._catalogue: tuple[Indexed, Catalogue] | None = None
        self._encoding = asyncio.Lock()
        self._changed = asyncio.Event()  # replaced at each step, so it never has to be cleared

    @property
    def epoch(self) -> int:
        return self.content.snapshot.epoch

    @property
    def catalogue(self) -> Catalogue:
        """Catalogue of the current content. It is built once per content, at the first use, since that visits all
        pools."""
        if self._catalogue is None or self._catalogue[0] is not self.content:
            self._catalogue = self.content, Catalogue.from_indexed(self.content)
        return self._catalogue[1]

    def advance(self, content: Indexed, changes: Changes) -> None:
        """Set the next content and wake all waiters; `changes` lead to it from the current one. The oldest steps are
        dropped beyond the limits of deltas."""
        if self.epoch:
            changed = {
                section: {name: (self.content.table(section).get(name), entry) for name, entry in entries.items()}
                for section, entries in changes.items()
            }
            self._steps.append(_Step(self.content.content_hash, changed))
            while sum(step.size for step in self._steps) > MAX_DELTA_ENTRIES:
                self._steps.popleft()
        self.content = content
        self._deltas, self._whole = {}, None
        self.wake_waiters()

    def wake_waiters(self) -> None:
        """Wake all waiters, which then check the feed again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_change(self, timeout_s: float) -> None:
        """Wait until the next step, a call of `wake_waiters` or the timeout, whichever comes first."""
        event = self._changed
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await event.wait()

    def delta_from(self, base_hash: str) -> bytes | None:
        """Return the delta from the content with this hash to the current one, or None if that content is unknown or
        the delta is too large."""
        if base_hash in self._deltas:
            return self._deltas[base_hash]
        known = base_hash == self.content.content_hash or any(step.base_hash == base_hash for step in self._steps)
        if not known:
            return None
        changes = self._changes_since(base_hash)
        small = sum(map(len, changes.values())) <= MAX_DELTA_ENTRIES
        lines = documents.delta_lines(self.content.snapshot, base_hash, changes)
        self._deltas[base_hash] = delta = b"".join(lines) if small else None
        return delta

    async def whole(self) -> tuple[Indexed, list[bytes]]:
        """Return the current content and its document in pieces, which all its receivers share."""
        async with self._encoding:
            content = self.content
            if self._whole is None or self._whole[0] is not content:
                self._whole = content, await asyncio.to_thread(_encoded, content)
            return self._whole

    def _changes_since(self, base_hash: str) -> dict[str, dict[str, AnyEntry | None]]:
        merged: dict[str, dict[str, tuple[AnyEntry | None, AnyEntry | None]]] = {}
        if base_hash != self.content.content_hash:
            for step in reversed(self._steps):
                for section, changed in step.changed.items():
                    into = merged.setdefault(section, {})
                    for name, (before, after) in changed.items():
                        into[name] = (before, into[name][1] if name in into else after)
                if step.base_hash == base_hash:
                    break
        return {
            section: {name: after for name, (before, after) in changed.items() if before != after}
            for section, changed in merged.items()
        }


def _encoded(content: Indexed) -> list[bytes]:
    pieces: list[bytes] = []
    breathe = pause_between_slices(PATIENT_SLICE_S)
    gathered: list[bytes] = []
    size_bytes = 0
    for line in documents.full_lines(content.snapshot):
        gathered.append(line)
        size_bytes += len(line)
        if size_bytes >= _PIECE_BYTES:
            pieces.append(b"".join(gathered))
            gathered, size_bytes = [], 0
            breathe()
    return [*pieces, b"".join(gathered)]
