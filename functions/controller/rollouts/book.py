"""The registry's rows as received so far: API-declared models, keys, and rollouts. An immutable value. Pure.

Rules: a page is folded in whole, in any order of its rows. A row stays until the registry itself reports that it is
gone (a deleted model, a revoked key). The registry's own order (`seq`), never a clock, decides which rollout of a
channel is the last. So a book that is read anew equals one that was followed live. If a registry suddenly knows less
(a restored backup, another database), the book stays as it is and records why, until the registry has caught up or an
operator removes the copy. Neighbours: `following` feeds it; `merging` and `functions.decisions.rollout.steering` read
it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from functions.api.ids import KeyId, ModelId, RolloutId
from functions.controller.rollouts.client import ApiKeyRow, ApiModel, ChangesPage
from functions.decisions.rollout.lifecycle import Rollout
from functions.decisions.rollout.steering import ChannelOf, Rows

MAX_REVOKED = 10_000  # remembered only for the seconds until they are out of the snapshot


@dataclass(frozen=True, slots=True)
class KnownRollout:
    row: Rollout
    seq: int  # the registry's number; 0: an older registry does not send one

    @property
    def age(self) -> tuple[int, float, str]:
        return self.seq, self.row.created_unix_s, self.row.id


@dataclass(frozen=True, slots=True)
class Book:
    change: int = 0
    lineage: str = ""
    is_known: bool = False  # the registry has sent everything up to `change` at least once
    models: Mapping[ModelId, ApiModel] = field(default_factory=dict)
    keys: Mapping[KeyId, ApiKeyRow] = field(default_factory=dict)
    revoked: Mapping[KeyId, str] = field(default_factory=dict)  # keyed hashes by key, the last MAX_REVOKED
    channels: Mapping[ChannelOf, tuple[KnownRollout, ...]] = field(default_factory=dict)
    """By channel, the rollout that counts (the active one, else the newest), and the newest if it is another."""

    @property
    def rows(self) -> Rows:
        return Rows({channel: known[0].row for channel, known in self.channels.items()}, self.is_known)

    @property
    def active(self) -> list[Rollout]:
        return sorted((row for row in self.rollouts if row.is_active), key=lambda row: row.id)

    @property
    def rollouts(self) -> Iterator[Rollout]:
        return (known.row for of_channel in self.channels.values() for known in of_channel)


class Contradiction(Exception):
    """The registry knows less than before, or is another one; the message says which."""


def fold_page(book: Book, page: ChangesPage) -> Book:
    """Return the book after the next page; raise Contradiction if they do not fit together."""
    if book.is_known and page.lineage and book.lineage and page.lineage != book.lineage:
        raise Contradiction(f"it is another database: {page.lineage}, not {book.lineage} as before")
    if page.change < book.change:
        raise Contradiction(f"it is at change {page.change}, and was at {book.change} before: a restored backup?")
    models = {**book.models, **{model.id: model for model in page.models if not model.deleted}}
    keys = {**book.keys, **{key.key_id: key for key in page.keys if not key.revoked}}
    for model in page.models:
        if model.deleted:
            models.pop(model.id, None)
    revoked = dict(book.revoked)
    for key in page.keys:
        revoked.pop(key.key_id, None)
        if key.revoked:
            keys.pop(key.key_id, None)
            revoked[key.key_id] = key.hmac_sha256
    return Book(
        change=page.change,
        lineage=page.lineage or book.lineage,
        is_known=book.is_known or not page.more,
        models=models,
        keys=keys,
        revoked=dict(list(revoked.items())[-MAX_REVOKED:]),
        channels=_merge_rollouts(book.channels, [KnownRollout(row.rollout, row.seq) for row in page.rollouts]),
    )


def with_rows(book: Book, rows: Iterable[Rollout]) -> Book:
    """Return the book after answers about rollouts, ahead of the feed; older answers change nothing. An unknown rollout
    was created after everything read so far: it gets the next number until the feed sends its own."""
    told = [KnownRollout(row, book.change + 1 if _is_numbered(book, row) else 0) for row in rows]
    return replace(book, channels=_merge_rollouts(book.channels, told, numbers_are_guessed=True))


def _is_numbered(book: Book, row: Rollout) -> bool:
    return any(known.seq for known in book.channels.get((row.model, row.channel), ()))


def _merge_rollouts(
    channels: Mapping[ChannelOf, tuple[KnownRollout, ...]],
    told: Iterable[KnownRollout],
    *,
    numbers_are_guessed: bool = False,
) -> Mapping[ChannelOf, tuple[KnownRollout, ...]]:
    """Return the channels with these rollouts merged into theirs. Other channels are not visited, because there may be
    fifty thousand."""
    by_channel: dict[ChannelOf, list[KnownRollout]] = {}
    for one in told:
        by_channel.setdefault((one.row.model, one.row.channel), []).append(one)
    kept = {
        channel: _relevant_rollouts(channels.get(channel, ()), new, numbers_are_guessed=numbers_are_guessed)
        for channel, new in by_channel.items()
    }
    return {**channels, **kept} if kept else channels


def _relevant_rollouts(
    known: Sequence[KnownRollout], told: Iterable[KnownRollout], *, numbers_are_guessed: bool
) -> tuple[KnownRollout, ...]:
    """Return the rollout that counts in one channel (an active one, or else the newest), and the newest if it is
    another; of each rollout the later state."""
    merged = {one.row.id: one for one in known}
    for one in told:
        before = merged.get(one.row.id, one)
        seq = before.seq if numbers_are_guessed else one.seq or before.seq
        merged[one.row.id] = KnownRollout(
            one.row if before.row.lock_version <= one.row.lock_version else before.row, seq
        )
    newest = _newest(merged.values())
    counts = next((one for one in merged.values() if one.row.is_active), newest)
    return (counts,) if counts is newest else (counts, newest)


def _newest(of_channel: Collection[KnownRollout]) -> KnownRollout:
    """Return the rollout that no other one names as its predecessor; the youngest if there are several."""
    predecessors = {one.row.previous for one in of_channel}
    last = [one for one in of_channel if one.row.id not in predecessors]
    return max(last or of_channel, key=lambda one: one.age)


class _Copy(msgspec.Struct, frozen=True):
    change: int = 0
    lineage: str = ""
    is_known: bool = False
    models: dict[ModelId, ApiModel] = {}
    keys: dict[KeyId, ApiKeyRow] = {}
    revoked: dict[KeyId, str] = {}
    rollouts: dict[RolloutId, Rollout] = {}
    seqs: dict[RolloutId, int] = {}


def encode(book: Book) -> bytes:
    known = [one for of_channel in book.channels.values() for one in of_channel]
    copy = _Copy(
        change=book.change,
        lineage=book.lineage,
        is_known=book.is_known,
        models=dict(book.models),
        keys=dict(book.keys),
        revoked=dict(book.revoked),
        rollouts={one.row.id: one.row for one in known},
        seqs={one.row.id: one.seq for one in known},
    )
    return msgspec.json.encode(copy)


def decode(document: bytes) -> Book:
    """Return the book that `document`, the content of its file, holds; raise ValueError if it is malformed."""
    try:
        copy = msgspec.json.decode(document, type=_Copy)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not a book of the registry's rows: {error}") from error
    return Book(
        change=copy.change,
        lineage=copy.lineage,
        is_known=copy.is_known,
        models=copy.models,
        keys=copy.keys,
        revoked=copy.revoked,
        channels=_merge_rollouts({}, [KnownRollout(row, copy.seqs.get(id_, 0)) for id_, row in copy.rollouts.items()]),
    )
