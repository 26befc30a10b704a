"""One write: it holds the lock of all writes, has a number, and commits only with an audit entry.

    with the row of `state` locked:  read → decide → write → `add_audit_entry` → commit

A write that audits nothing is rolled back, and its number goes to the next write. So every committed write is in the
audit log (test_write_without_audit_entry_is_rolled_back).
"""

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, select, update

from functions.registry.sql import audit
from functions.registry.sql.audit import Actor
from functions.registry.sql.tables import state


@dataclass(slots=True)
class Write:
    """A write in progress. Used by one thread, from the lock to the commit."""

    connection: Connection
    actor: Actor
    now_unix_s: float
    change: int  # this write's number
    audit_seq: int
    audit_hash: str
    fence: int
    audited_entries: int = field(default=0)

    @classmethod
    def start(cls, connection: Connection, actor: Actor, now_unix_s: float) -> "Write":
        """Wait for the lock of all writes and return the write that holds it. No other write runs until this
        transaction ends."""
        row: Row[Any] = connection.execute(select(state).with_for_update()).one()
        return cls(connection, actor, now_unix_s, row.change + 1, row.audit_seq, row.audit_hash, row.fence)

    def add_audit_entry(self, action: str, subject: str, tenant: str = "", **detail: Any) -> None:
        """Add an audit entry: an action on a subject of a tenant ("": of none). `detail` must not contain secrets. A
        write without an entry is not committed."""
        entry = {
            "at_unix_s": self.now_unix_s,
            "actor": self.actor.name,
            "request_id": self.actor.request_id,
            "change": self.change,
            "action": action,
            "subject": subject,
            "tenant": tenant,
            "detail": detail,
        }
        self.audit_seq += 1
        self.audit_hash = audit.append(self.connection, self.audit_seq, self.audit_hash, entry)
        self.audited_entries += 1

    def finish(self) -> bool:
        """Store the numbers of this write and its last audit entry in `state`. Return False, and store nothing, if no
        entry was added: there is nothing to commit."""
        if not self.audited_entries:
            return False
        stamped = {
            "change": self.change,
            "audit_seq": self.audit_seq,
            "audit_hash": self.audit_hash,
            "fence": self.fence,
        }
        self.connection.execute(update(state).values(**stamped))
        return True
