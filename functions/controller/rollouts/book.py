"""What the registry has told of its rows: API-declared models, keys, and rollouts. A value, grown page by page. Pure.

Laws: a page is folded in whole, in any order of its rows; what was told stays until the registry itself says that it is
gone (a deleted model, a revoked key). A registry that suddenly knows less (a restored backup, another database) is not
believed: the book stays as it is, and says why, until the registry has caught up or somebody makes us forget.
Neighbours: `following` feeds it; `merging` and `functions.decisions.rollout_steering` read it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from functions.api.ids import KeyId, ModelId, RolloutId
from functions.controller.rollouts.wire import ApiKey, ApiModel, Changes
from functions.decisions.rollout import Rollout
from functions.decisions.rollout_steering import ChannelOf, Rows

MAX_REVOKED = 10_000  # remembered only until they are out of what is published: seconds


class Book(msgspec.Struct, frozen=True):
    change: int = 0
    lineage: str = ""
    is_known: bool = False  # the registry has told everything up to `change` at least once
    models: dict[ModelId, ApiModel] = {}
    keys: dict[KeyId, ApiKey] = {}
    revoked: dict[KeyId, str] = {}  # key -> its keyed hash, of the last MAX_REVOKED
    rollouts: dict[RolloutId, Rollout] = {}  # the last one of each channel, and every active one

    @property
    def rows(self) -> Rows:
        return Rows(_latest(self.rollouts.values()), self.is_known)

    @property
    def active(self) -> list[Rollout]:
        return sorted((row for row in self.rollouts.values() if row.is_active), key=lambda row: row.id)


class Contradiction(Exception):
    """The registry knows less than it did, or is another one; the message says what to do."""


def folded(book: Book, page: Changes) -> Book:
    """The book after the page that comes next; Contradiction where they do not fit together."""
    if book.is_known and page.lineage and book.lineage and page.lineage != book.lineage:
        raise Contradiction(f"it is another database ({page.lineage}) than the one that is known ({book.lineage})")
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
        rollouts=_kept(book.rollouts, [row.rollout for row in page.rollouts]),
    )


def with_row(book: Book, row: Rollout) -> Book:
    """The book after an answer about one rollout, ahead of the feed; what is older than what it has changes nothing."""
    return msgspec.structs.replace(book, rollouts=_kept(book.rollouts, [row]))


def _kept(known: Mapping[RolloutId, Rollout], told: Iterable[Rollout]) -> dict[RolloutId, Rollout]:
    """Of each channel the last one and the active one; of one rollout the later state."""
    merged = dict(known)
    for row in told:
        before = merged.get(row.id)
        if before is None or before.lock_version <= row.lock_version:
            merged[row.id] = row
    last = {row.id for row in _latest(merged.values()).values()}
    newest = {row.id for row in _newest(merged.values()).values()}
    return {id_: row for id_, row in merged.items() if id_ in last or id_ in newest}


def _latest(rows: Iterable[Rollout]) -> dict[ChannelOf, Rollout]:
    """What counts for each channel: the active one, else the newest."""
    found = _newest(rows)
    for row in rows:
        if row.is_active:
            found[row.model, row.channel] = row
    return found


def _newest(rows: Iterable[Rollout]) -> dict[ChannelOf, Rollout]:
    found: dict[ChannelOf, Rollout] = {}
    for row in sorted(rows, key=_age):
        other = found.get((row.model, row.channel))
        if other is None or other.previous != row.id:
            found[row.model, row.channel] = row
    return found


def _age(row: Rollout) -> tuple[float, str]:
    return row.created_unix_s, row.id


def encode(book: Book) -> bytes:
    return msgspec.json.encode(book)


def decode(document: bytes) -> Book:
    """ValueError where that is no book."""
    try:
        book: Any = msgspec.json.decode(document, type=Book)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not a book of the registry's rows: {error}") from error
    return book  # type: ignore[no-any-return]
