"""Store of one kind's objects as the API server last sent them, small enough for tens of thousands.

An object is stored as the bytes of what its author wrote (head, labels, spec) and, separately, what the controller
writes (status, finalizers). Only a change of the author's part counts as a change. So our own writes, which come back
as events, do not. Nor does the number of replicas that only our autoscaler declares. Annotations and managed fields
are dropped.

Laws: a relist replaces everything, so that a deletion without an event is noticed. Objects stay while the server is
unavailable. Any thread may call.
"""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from functions.controller.kubernetes.objects import INFERENCE_SERVICE
from functions.controller.kubernetes.ownership import declared_by_autoscaler_alone

MAX_OBJECTS = 200_000  # per kind; past it an error is reported instead of growing


class TooManyObjects(Exception):
    """More objects of one kind than may be stored; delete some, or raise the bound together with the memory."""


@dataclass(frozen=True, slots=True)
class WatchedObject:
    name: str
    namespace: str
    uid: str
    resource_version: str
    generation: int
    document: bytes  # JSON: apiVersion, kind, metadata (name, namespace, labels), spec
    deleting: bool = False
    finalizers: tuple[str, ...] = ()
    status: Mapping[str, Any] = field(default_factory=dict)

    def has_same_content(self, other: "WatchedObject") -> bool:
        """Return True if the author's part is equal; another status, resourceVersion or other finalizers do not
        count."""
        mine, others = (replace(one, resource_version="", status={}, finalizers=()) for one in (self, other))
        return mine == others


def watched_object(item: Mapping[str, Any], api_version: str, kind: str) -> WatchedObject:
    """Return the object to store. `item` is as the API server sends it; items of lists have no apiVersion and kind."""
    metadata = item["metadata"]
    kept = {key: metadata[key] for key in ("name", "namespace", "labels") if metadata.get(key)}
    written = {key: value for key, value in item.items() if key not in {"apiVersion", "kind", "metadata", "status"}}
    if kind == INFERENCE_SERVICE.kind and declared_by_autoscaler_alone(item):
        written["spec"] = _without_replicas(written["spec"])
    document = {"apiVersion": api_version, "kind": kind, "metadata": kept, **written}
    return WatchedObject(
        name=metadata["name"],
        namespace=metadata.get("namespace", ""),
        uid=metadata.get("uid", ""),
        resource_version=metadata.get("resourceVersion", ""),
        generation=int(metadata.get("generation", 0)),
        document=orjson.dumps(document, option=orjson.OPT_SORT_KEYS),
        deleting="deletionTimestamp" in metadata,
        finalizers=tuple(metadata.get("finalizers", ())),
        status=item.get("status") or {},
    )


def _without_replicas(spec: Mapping[str, Any]) -> dict[str, Any]:
    predictor = {key: value for key, value in spec["predictor"].items() if key != "minReplicas"}
    return {**spec, "predictor": predictor}


class ObjectStore:
    def __init__(self, max_objects: int = MAX_OBJECTS) -> None:
        self._max_objects = max_objects
        self._objects: dict[str, WatchedObject] = {}
        self._lock = threading.Lock()
        self._synced = False
        self._changed_version = ""

    @property
    def synced(self) -> bool:
        """True if the objects were listed and their kind was not found missing since."""
        with self._lock:
            return self._synced

    @property
    def changed_version(self) -> str:
        """resourceVersion of the newest change by an author, or of the list if there was none since."""
        with self._lock:
            return self._changed_version

    @property
    def count(self) -> int:
        with self._lock:
            return len(self._objects)

    def objects(self) -> list[WatchedObject]:
        """Return all objects, sorted by namespace and name."""
        with self._lock:
            return sorted(self._objects.values(), key=lambda one: (one.namespace, one.name))

    def get(self, name: str) -> WatchedObject | None:
        with self._lock:
            return self._objects.get(name)

    def replace_all(self, listed: Iterable[WatchedObject], version: str = "") -> bool:
        """Replace all objects by a complete list of that version. Return True if it has a change by an author, or is
        the first list since the kind was unknown. Raise TooManyObjects if it is too long."""
        objects = {one.name: one for one in listed}
        self._check(len(objects))
        with self._lock:
            same = self._objects.keys() == objects.keys() and all(
                one.has_same_content(objects[name]) for name, one in self._objects.items()
            )
            is_change = not self._synced or not same
            self._objects, self._synced = objects, True
            self._note(is_change, version)
            return is_change

    def put(self, one: WatchedObject) -> bool:
        """Store an added or changed object. Return True if its author changed it. Raise TooManyObjects if there is no
        room for another one."""
        with self._lock:
            known = self._objects.get(one.name)
            if known is None:
                self._check(len(self._objects) + 1)
            self._objects[one.name] = one
            is_change = known is None or not known.has_same_content(one)
            self._note(is_change, one.resource_version)
            return is_change

    def remove(self, name: str, version: str = "") -> bool:
        with self._lock:
            is_change = self._objects.pop(name, None) is not None
            self._note(is_change, version)
            return is_change

    def mark_kind_missing(self) -> None:
        """Mark the objects as unknown, rather than none: the server does not know the kind."""
        with self._lock:
            self._synced = False

    def _note(self, is_change: bool, version: str) -> None:
        if is_change:
            self._changed_version = version

    def _check(self, count: int) -> None:
        if count > self._max_objects:
            raise TooManyObjects(f"{count} objects of one kind, over the bound of {self._max_objects}")
