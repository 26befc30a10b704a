"""Inventory on the cluster, in one ConfigMap: applied objects, the revision's progress, the last writer's token.

Only objects in the inventory may be pruned. An object is listed before it is created, so that a controller killed in
between leaves an entry and never an orphan. The fencing token is that of the leader that wrote last. A leader with a
smaller token has been replaced and must not write. Each part has its own key, so that people can read it.

A record that cannot be read is rejected as a whole (`Terminal`): with half an inventory, pruning would guess.

Every write carries the uid and resourceVersion that were read, so that one of two controllers gets `Stale`. The first
write creates an empty ConfigMap and then applies to it. Content set at creation would belong to an update of ours,
with which our own applies would conflict.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from functions.controller.kubernetes.api import KubeApi
from functions.controller.kubernetes.errors import LeadershipLost, Terminal
from functions.controller.kubernetes.objects import (
    CONFIG_MAP,
    CONSENT_ANNOTATION,
    Body,
    ObjectRef,
    mapping_at,
    uid_of,
    version_of,
)

HISTORY_MAX = 5
ENTRIES_MAX = 2000
MESSAGE_MAX_CHARS = 2000

Result = Literal["applied", "refused", "waiting"]


class InventoryEntry(msgspec.Struct, frozen=True, order=True):
    """One applied object. `uid` is empty from before its creation until it is first seen."""

    group: str
    kind: str
    namespace: str
    name: str
    uid: str = ""
    wave: int = 0
    keep: bool = False  # opted out of pruning, in git
    new: bool = False  # added since the last pass with nothing to prune; not counted by the guard of large prunes
    outdated: str = ""  # fingerprint of the child's arguments before our last change, see `health.fingerprint`

    @property
    def ref(self) -> ObjectRef:
        return ObjectRef(self.group, self.kind, self.namespace, self.name)


class ReconcileAttempt(msgspec.Struct, frozen=True):
    """Result of one revision. `ended_unix_s` is when the result was first reached, not when it was last confirmed."""

    revision: str
    result: Result
    ended_unix_s: float
    duration_s: float = 0.0
    message: str = ""


class WaitingWave(msgspec.Struct, frozen=True):
    """Wave that a revision waits for."""

    revision: str
    wave: int
    since_unix_s: float


@dataclass(frozen=True, slots=True)
class InventoryRecord:
    token: int = 0
    entries: tuple[InventoryEntry, ...] = ()  # sorted
    last_attempted: str = ""
    last_applied: str = ""
    history: tuple[ReconcileAttempt, ...] = ()  # newest first
    waiting: WaitingWave | None = None
    last_handled_reconcile_at: str = ""  # value of the annotation that requested a reconcile
    consent: str = ""  # revision whose large prune an annotation allows; never written by us
    uid: str = ""  # uid of the ConfigMap, or empty if there is none yet
    resource_version: str = ""

    def with_attempt(self, attempt: ReconcileAttempt) -> "InventoryRecord":
        """Return the record with the attempt in its history, one line for each revision. Nothing changes if the
        newest line says the same. The same holds for the line of the revision that stays in force while a later one
        is refused."""
        attempt = msgspec.structs.replace(attempt, message=attempt.message[:MESSAGE_MAX_CHARS])
        older = self.history
        if older and older[0].revision == attempt.revision:
            if _same_fate(older[0], attempt):
                return self
            older = older[1:]
        elif len(older) > 1 and older[0].result == "refused" and _same_fate(older[1], attempt):
            return self
        return replace(self, last_attempted=attempt.revision, history=(attempt, *older)[:HISTORY_MAX])

    def is_last_good(self, revision: str) -> bool:
        """Return True if `revision` stays in force while a later one is refused; only its drift is repaired."""
        newest = self.history[:2]
        return len(newest) > 1 and newest[0].result == "refused" and newest[1].revision == revision

    def with_entries(self, entries: Mapping[ObjectRef, InventoryEntry]) -> "InventoryRecord":
        if len(entries) > ENTRIES_MAX:
            raise Terminal(f"the inventory would have {len(entries)} objects; allowed: {ENTRIES_MAX}")
        return replace(self, entries=tuple(sorted(entries.values())))

    @property
    def by_ref(self) -> dict[ObjectRef, InventoryEntry]:
        return {entry.ref: entry for entry in self.entries}


def _same_fate(one: ReconcileAttempt, other: ReconcileAttempt) -> bool:
    return (one.revision, one.result, one.message) == (other.revision, other.result, other.message)


def encode(record: InventoryRecord) -> dict[str, str]:
    """Return the ConfigMap's data. Equal records give equal data."""
    return {
        "fencingToken": str(record.token),
        "lastAttemptedRevision": record.last_attempted,
        "lastAppliedRevision": record.last_applied,
        "lastHandledReconcileAt": record.last_handled_reconcile_at,
        "inventory": _lines(record.entries),
        "history": _lines(record.history),
        "waiting": msgspec.json.encode(record.waiting).decode(),
    }


def decode(data: Mapping[str, str]) -> InventoryRecord:
    """Return the record; an empty ConfigMap is an empty record. Raises Terminal if any part cannot be read."""
    try:
        return InventoryRecord(
            token=int(data.get("fencingToken") or 0),
            last_attempted=data.get("lastAttemptedRevision", ""),
            last_applied=data.get("lastAppliedRevision", ""),
            last_handled_reconcile_at=data.get("lastHandledReconcileAt", ""),
            entries=msgspec.json.decode(data.get("inventory") or "[]", type=tuple[InventoryEntry, ...]),
            history=msgspec.json.decode(data.get("history") or "[]", type=tuple[ReconcileAttempt, ...]),
            waiting=msgspec.json.decode(data.get("waiting") or "null", type=WaitingWave | None),
        )
    except (ValueError, msgspec.DecodeError) as error:
        raise Terminal(
            f"the controller's record cannot be read: {error}; restore the ConfigMap, or delete it"
        ) from error


def _lines(items: tuple[InventoryEntry, ...] | tuple[ReconcileAttempt, ...]) -> str:
    return "[" + ",\n ".join(msgspec.json.encode(item).decode() for item in items) + "]"


RECORD_NAME = "shoal-controller"


class RecordStore:
    def __init__(self, api: KubeApi, namespace: str, name: str = RECORD_NAME) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name

    def read(self) -> InventoryRecord:
        """Return the record, empty if there is none yet. Raise LeadershipLost if a later leader wrote it, and Terminal
        if it cannot be read."""
        found = self._api.get(CONFIG_MAP, self._namespace, self._name)
        if found is None:
            return InventoryRecord()
        record = decode(mapping_at(found, "data"))
        if record.token > self._api.token:
            message = f"a later leader wrote the record: its token is {record.token}, ours is {self._api.token}"
            raise LeadershipLost(message)
        consent = str(mapping_at(found, "metadata", "annotations").get(CONSENT_ANNOTATION, ""))
        return replace(record, consent=consent, uid=uid_of(found), resource_version=version_of(found))

    def write(self, record: InventoryRecord) -> InventoryRecord:
        """Write the record under our token, creating its ConfigMap if needed, and return it. Raises Stale if another
        process wrote since it was read."""
        record = replace(record, token=self._api.token)
        head: Body = {
            "apiVersion": CONFIG_MAP.api_version,
            "kind": CONFIG_MAP.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
        }
        if not record.uid:
            created = self._api.create(head)
            record = replace(record, uid=uid_of(created), resource_version=version_of(created))
        lock = {"uid": record.uid, "resourceVersion": record.resource_version}
        body = {**head, "metadata": {**head["metadata"], **lock}, "data": encode(record)}
        written = self._api.server_side_apply(body, force=True)  # by force: no other manager may own the record
        return replace(record, resource_version=version_of(written))
