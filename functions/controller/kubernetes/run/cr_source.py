"""Custom resources as configuration: the watched objects as one `Loaded`, the form that every source provides.

Flux, Argo CD or kubectl deliver the objects; this module only reads. An object is validated again when its author
changed it. An invalid object is left out alone (`selection`), and its last good version stands in. That is the
version remembered from when it was in force, or the one in the published snapshot (`last_good`), which outlives this
process.

Laws: nothing counts as known before every kind was listed (a kind without its definition is not a kind without
objects). An object that is being deleted stays in force while another one references it (`finalizers`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import orjson

from functions.api.declared import Declared
from functions.api.kinds.catalogue import AnyObject
from functions.api.kinds.inference_service import POOL_LABEL
from functions.api.kinds.model import Model
from functions.api.kinds.routing_policy import RoutingPolicy
from functions.api.kinds.tenant import Tenant
from functions.api.loader import Loaded
from functions.api.snapshot import Snapshot
from functions.controller.kubernetes.objects import INFERENCE_SERVICE, mapping_at
from functions.controller.kubernetes.run.conditions import is_published
from functions.controller.kubernetes.run.informer import Informer, WatchedKind
from functions.controller.kubernetes.run.last_good import LastGood
from functions.controller.kubernetes.run.object_store import WatchedObject
from functions.controller.kubernetes.run.selection import (
    Candidate,
    Selection,
    SelectionRefusal,
    ValidatedObject,
    select,
    validate_document,
)


@dataclass(frozen=True, slots=True)
class SeenObject:
    watched: WatchedKind
    stored: WatchedObject
    held_by: tuple[str, ...] = ()  # objects that still reference it while it is being deleted

    @property
    def pool(self) -> str:
        """Pool label of an InferenceService, valid or not; empty for other kinds."""
        if self.watched.kind != INFERENCE_SERVICE.kind:
            return ""
        return str(mapping_at(orjson.loads(self.stored.document), "metadata", "labels").get(POOL_LABEL, ""))


@dataclass(frozen=True, slots=True)
class ObservedResources:
    loaded: Loaded
    revision: str
    seen: Mapping[str, SeenObject]  # by key
    refusals: Mapping[str, SelectionRefusal]
    waiting: tuple[str, ...] = ()  # why the view is incomplete; then nothing is published

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(f"{key}: {problem}" for key, refusal in self.refusals.items() for problem in refusal.problems)


@dataclass(frozen=True, slots=True)
class _Known:
    document: bytes
    judged: ValidatedObject


class CustomResources:
    """Source over all informers. Only one thread at a time may call `observe`."""

    def __init__(self, informers: Sequence[Informer]) -> None:
        self._informers = tuple(informers)
        self._known: dict[str, _Known] = {}
        self._good: dict[str, Declared[AnyObject]] = {}
        self._last_good: LastGood | None = None

    def set_published(self, snapshot: Snapshot) -> None:
        """Use this snapshot in force for objects not seen valid since. It is newer than the good versions known so
        far, since another controller may have led in between."""
        self._last_good, self._good = LastGood(snapshot), {}

    def observe(self) -> ObservedResources:
        waiting = tuple(
            informer.problem or f"{informer.watched.kind}: not listed yet"
            for informer in self._informers
            if not informer.store.synced
        )
        revision = f"kubernetes@{self._version()}"
        seen = self._seen_objects()
        if waiting:
            return ObservedResources(Loaded(()), revision, seen, {}, waiting)
        self._judge(seen)
        chosen, held = self._choose(seen)
        self._good = {one.document.file: one for one in chosen.objects}
        self._drop_gone(seen)
        return ObservedResources(Loaded(chosen.objects), revision, {**seen, **held}, chosen.refusals)

    def _version(self) -> str:
        """Return the version of the newest change. Versions are opaque; this one is only shown to people."""
        versions = [informer.store.changed_version for informer in self._informers]
        return str(max((int(version) for version in versions if version.isdigit()), default=0))

    def _seen_objects(self) -> dict[str, SeenObject]:
        return {
            f"{informer.watched.plural}/{one.name}": SeenObject(informer.watched, one)
            for informer in self._informers
            for one in informer.store.objects()
        }

    def _judge(self, seen: Mapping[str, SeenObject]) -> None:
        for key, one in seen.items():
            known = self._known.get(key)
            if known is None or known.document != one.stored.document:
                self._known[key] = _Known(one.stored.document, validate_document(key, one.stored.document))

    def _candidate(self, key: str, seen: Mapping[str, SeenObject]) -> Candidate:
        stored = seen[key].stored
        judged = self._known[key].judged
        good = self._good.get(key)
        unchanged = good is not None and good is judged.declared
        accepted = unchanged or is_published(stored.status, stored.generation)
        if good is None and not accepted:
            good = self._last_accepted(key, seen)
        return Candidate(judged, None if unchanged else good, accepted)

    def _last_accepted(self, key: str, seen: Mapping[str, SeenObject]) -> Declared[AnyObject] | None:
        """Return the object's version in the snapshot that was in force when the term began, or None if it is not
        known. For a service it is unknown if several claim its pool."""
        if self._last_good is None:
            return None
        if seen[key].watched.kind != INFERENCE_SERVICE.kind:
            return self._last_good.find_object(key)
        pool = seen[key].pool
        if sum(one.pool == pool for one in seen.values()) > 1:
            return None  # several services claim the pool, and its entry does not say which of them it was
        return self._last_good.find_service(key, pool, seen[key].stored.document)

    def _choose(self, seen: Mapping[str, SeenObject]) -> tuple[Selection, dict[str, SeenObject]]:
        """Select what is in force. Also return the objects that are being deleted while others reference them, as
        written or by a last good version that stands in."""
        staying = {key: one for key, one in seen.items() if not one.stored.deleting}
        deleting = {key: one for key, one in seen.items() if one.stored.deleting and one.stored.finalizers}
        chosen = self._select({**staying, **deleting})
        if not deleting:
            return chosen, {}
        valid = {one.document.file: one for one in chosen.objects}
        pointing = [each for key in staying for each in (self._known[key].judged.declared, valid.get(key))]
        needed = referrers(each for each in pointing if each is not None)
        held = {
            key: SeenObject(one.watched, one.stored, tuple(dict.fromkeys(needed[key])))
            for key, one in deleting.items()
            if key in needed
        }
        return (chosen if len(held) == len(deleting) else self._select({**staying, **held})), held

    def _select(self, seen: Mapping[str, SeenObject]) -> Selection:
        return select({key: self._candidate(key, seen) for key in seen})

    def _drop_gone(self, seen: Mapping[str, SeenObject]) -> None:
        self._known = {key: known for key, known in self._known.items() if key in seen}


def referrers(objects: Iterable[Declared[AnyObject]]) -> dict[str, list[str]]:
    """Return, for each referenced object, the keys of the objects that reference it."""
    found: dict[str, list[str]] = {}
    for declared in objects:
        for target in dict.fromkeys(_targets(declared.value)):
            found.setdefault(target, []).append(declared.document.file)
    return found


def _targets(value: AnyObject) -> Iterator[str]:
    match value:
        case Tenant():
            yield f"quotapolicies/{value.spec.tier}"
        case Model():
            yield f"rolloutpolicies/{value.spec.rollout}"
        case RoutingPolicy():
            tiers = [*(step.tiers for step in value.spec.fallback), *(step.tiers for step in value.spec.cascade)]
            yield from (f"quotapolicies/{tier}" for names in tiers for tier in names)
