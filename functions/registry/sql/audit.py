"""Audit log: each change and its author, in a hash chain that reveals rewritten entries.

    hash(n) = sha256(hash(n-1) || entry(n)),   hash(0) = 64 zeros,   entry(n) = canonical JSON with `seq` n

Hash and entry are joined as text: the first entry `{"a":1}` has the hash of `000…000{"a":1}`
(test_audit_hashes_cover_the_canonical_entries). The same transaction writes the last number and hash to `state`, so
a truncated chain is detected. Write access to the whole database still allows a forged chain; so store `head`
elsewhere from time to time and compare it (docs/explanation/registry.md).
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, insert, select

from functions.registry.sql.tables import audit, state

FIRST_HASH = "0" * 64
_VERIFY_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Actor:
    """Author of a write: `operator`, `key:<id>`, `controller`, `registry` or `region:<name>`, never a secret."""

    name: str
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class Verified:
    """Result of a verification. `broken_at` is the first missing or altered entry."""

    entries: int
    head: str
    broken_at: int | None = None
    reason: str = ""


def canonical(value: Any) -> str:
    """Return the value as JSON text that is the same for equal content: sorted keys, no spaces."""
    return msgspec.json.encode(value, order="sorted").decode()


def hash_of(before: str, entry: str) -> str:
    return hashlib.sha256((before + entry).encode()).hexdigest()


def append(connection: Connection, seq: int, before: str, entry: dict[str, Any]) -> str:
    """Write the audit entry with number `seq`, chained to the hash `before` of the entry before, and return its own
    hash."""
    text = canonical({"seq": seq, **entry})
    own = hash_of(before, text)
    connection.execute(insert(audit).values(seq=seq, tenant=entry["tenant"], entry=text, hash=own))
    return own


def page(connection: Connection, before: int | None, limit: int, tenant: str | None = None) -> list[dict[str, Any]]:
    """Return up to `limit` audit entries with a number below `before`, newest first; of one tenant if it is given."""
    query = select(audit.c.entry, audit.c.hash).order_by(audit.c.seq.desc()).limit(limit)
    if before is not None:
        query = query.where(audit.c.seq < before)
    if tenant is not None:
        query = query.where(audit.c.tenant == tenant)
    return [{**msgspec.json.decode(text), "hash": own} for text, own in connection.execute(query)]


def verify(connection: Connection) -> Verified:
    """Check the whole chain of audit entries, from the first to the last that `state` names. The result names the first
    missing or altered one."""
    seq, own = 0, FIRST_HASH
    for number, text, shown in _entries(connection):
        if number != seq + 1:
            return Verified(seq, own, seq + 1, f"entry {seq + 1} is missing")
        if hash_of(own, text) != shown or _seq_of(text) != number:
            return Verified(seq, own, number, f"entry {number} is not what was written")
        seq, own = number, shown
    last_seq, last_hash = connection.execute(select(state.c.audit_seq, state.c.audit_hash)).one()
    if (last_seq, last_hash) != (seq, own):
        return Verified(seq, own, seq + 1, f"the chain ends at {seq}, but {last_seq} entries were written")
    return Verified(seq, own)


def _entries(connection: Connection) -> Iterator[tuple[int, str, str]]:
    last = 0
    while True:
        query = select(audit.c.seq, audit.c.entry, audit.c.hash).where(audit.c.seq > last)
        rows = connection.execute(query.order_by(audit.c.seq).limit(_VERIFY_PAGE)).all()
        yield from (tuple(row) for row in rows)
        if len(rows) < _VERIFY_PAGE:
            return
        last = rows[-1][0]


def _seq_of(text: str) -> object:
    try:
        entry = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    return entry.get("seq") if isinstance(entry, dict) else None
