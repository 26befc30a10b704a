"""Inventory on the cluster: what this controller applied, how far it came, and who wrote last; kept in one ConfigMap.

The inventory is what may be pruned: an object is listed before it is created, so that a controller killed in between
leaves a name that is found again, never an orphan. The fencing token is that of the leader who wrote last; a leader
with a smaller one has been succeeded and must not write. One key each, so that people can read it.

A record that cannot be read is refused whole (`Terminal`): with half an inventory, prune would guess.

Every write carries the uid and resourceVersion that were read, so that of two controllers one gets `Stale`. The first
write creates the ConfigMap empty and then applies to it: created with content, it would belong to an update of ours,
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
    new: bool = False  # listed since something was last left to prune; counts for nothing in the guard against that
    outdated: str = ""  # arguments of its child that are from before our last change, see `health.fingerprint`

    @property
    def ref(self) -> ObjectRef:
        return ObjectRef(self.group, self.kind, self.namespace, self.name)


class ReconcileAttempt(msgspec.Struct, frozen=True):
    """One revision's fate. `ended_unix_s` is when the result was first reached, not when it was last confirmed."""

    revision: str
    result: Result
    ended_unix_s: float
    duration_s: float = 0.0
    message: str = ""


class WaitingWave(msgspec.Struct, frozen=True):
    """The health gate that a revision stands before."""

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
    last_handled_reconcile_at: str = ""  # the value of the annotation that asked for a reconcile now
    consent: str = ""  # the revision whose large prune a person has allowed, by annotation; never written by us
    uid: str = ""  # of the ConfigMap; empty where there is none yet
    resource_version: str = ""

    def with_attempt(self, attempt: ReconcileAttempt) -> "InventoryRecord":
        """One line of history for each revision: its latest fate. The same fate again changes nothing; nor does that of
        the one that stays in force while a later one is refused."""
        attempt = msgspec.structs.replace(attempt, message=attempt.message[:MESSAGE_MAX_CHARS])
        older = self.history
        if older and older[0].revision == attempt.revision:
            if _same_fate(older[0], attempt):
                return self
            older = older[1:]
        elif len(older) > 1 and older[0].result == "refused" and _same_fate(older[1], attempt):
            return self
        return replace(self, last_attempted=attempt.revision, history=(attempt, *older)[:HISTORY_MAX])

    def repairs(self, revision: str) -> bool:
        """Whether that is what stays in force while a later revision is refused: only drift from it is mended."""
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
    """The ConfigMap's data; equal records give equal data."""
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
    """Terminal where any part cannot be read; an empty ConfigMap is an empty record."""
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
    """A JSON array with a line per item."""
    return "[" + ",\n ".join(msgspec.json.encode(item).decode() for item in items) + "]"


RECORD_NAME = "shoal-controller"


class RecordStore:
    def __init__(self, api: KubeApi, namespace: str, name: str = RECORD_NAME) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name

    def read(self) -> InventoryRecord:
        """What is remembered; LeadershipLost where a later leader wrote it."""
        found = self._api.get(CONFIG_MAP, self._namespace, self._name)
        if found is None:
            return InventoryRecord()
        record = decode(mapping_at(found, "data"))
        if record.token > self._api.token:
            message = f"the record was written under token {record.token}, ours is {self._api.token}"
            raise LeadershipLost(message)
        consent = str(mapping_at(found, "metadata", "annotations").get(CONSENT_ANNOTATION, ""))
        return replace(record, consent=consent, uid=uid_of(found), resource_version=version_of(found))

    def write(self, record: InventoryRecord) -> InventoryRecord:
        """The record as it is now, under our token; Stale where somebody else wrote since it was read."""
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
        written = self._api.server_side_apply(body, force=True)  # by force: nobody else may keep our record
        return replace(record, resource_version=version_of(written))
