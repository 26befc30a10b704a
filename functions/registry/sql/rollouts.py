"""Reading rollouts: rows as values, the filtered list, and the events of each rollout.

The `row` column holds the encoded rollout (`functions.decisions.rollout.codec`); the other columns only index it.
"""

from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, select

from functions.decisions.rollout import codec as rollout_codec
from functions.decisions.rollout.lifecycle import Rollout
from functions.registry.sql.tables import rollout_events, rollouts


@dataclass(frozen=True, slots=True)
class StoredRollout:
    rollout: Rollout
    seq: int  # the change that created it
    change: int  # the last change
    tenant: str  # empty for a base model


@dataclass(frozen=True, slots=True)
class Filter:
    """Filter of the list; a field that is None matches all rollouts."""

    tenant: str | None = None
    model: str | None = None
    channel: str | None = None
    state: str | None = None
    active: bool | None = None


def find(connection: Connection, rollout_id: str) -> StoredRollout | None:
    row = connection.execute(select(rollouts).where(rollouts.c.id == rollout_id)).one_or_none()
    return _stored(row) if row is not None else None


def active_of(connection: Connection, model: str, channel: str) -> StoredRollout | None:
    here = (rollouts.c.model == model, rollouts.c.channel == channel, rollouts.c.active)
    row = connection.execute(select(rollouts).where(*here)).one_or_none()
    return _stored(row) if row is not None else None


def last_id_of(connection: Connection, model: str, channel: str) -> str:
    """Return the id of the channel's newest rollout in any state; empty if there is none."""
    here = (rollouts.c.model == model, rollouts.c.channel == channel)
    found = connection.scalar(select(rollouts.c.id).where(*here).order_by(rollouts.c.seq.desc()).limit(1))
    return found or ""


def page(connection: Connection, wanted: Filter, before: int | None, limit: int) -> list[StoredRollout]:
    """Return up to `limit` rollouts that match `wanted` and were created before the write number `before`, newest
    first."""
    query = select(rollouts)
    for column in ("tenant", "model", "channel", "state", "active"):
        value = getattr(wanted, column)
        if value is not None:
            query = query.where(rollouts.c[column] == value)
    if before is not None:
        query = query.where(rollouts.c.seq < before)
    return [_stored(row) for row in connection.execute(query.order_by(rollouts.c.seq.desc()).limit(limit))]


def rollouts_changed(connection: Connection, after: int, upto: int) -> list[StoredRollout]:
    touched = (rollouts.c.change > after, rollouts.c.change <= upto)
    query = select(rollouts).where(*touched).order_by(rollouts.c.change, rollouts.c.id)
    return [_stored(row) for row in connection.execute(query)]


def history(connection: Connection, rollout_id: str, limit: int = 1000) -> list[dict[str, Any]]:
    """Return the rollout's last `limit` events, oldest first."""
    here = select(rollout_events).where(rollout_events.c.rollout == rollout_id)
    rows = connection.execute(here.order_by(rollout_events.c.lock_version.desc()).limit(limit)).all()
    return [
        {
            "lock_version": row.lock_version,
            "at_unix_s": row.at_unix_s,
            "actor": row.actor,
            "event": msgspec.json.decode(row.event),
            "state": row.state,
            "stage": row.stage,
        }
        for row in reversed(rows)
    ]


def active_digests(connection: Connection) -> set[str]:
    """Return the digests of both versions of every active rollout."""
    found: set[str] = set()
    for text in connection.scalars(select(rollouts.c.row).where(rollouts.c.active)):
        rollout = rollout_codec.decode_rollout(text)
        found |= {rollout.from_digest, rollout.to_digest}
    return found


def _stored(row: Row[Any]) -> StoredRollout:
    return StoredRollout(rollout_codec.decode_rollout(row.row), row.seq, row.change, row.tenant)
