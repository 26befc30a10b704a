"""Conditions of declared objects: ready or not, with the reason. Pure.

Ready: the object is as declared and in use. Reconciling: it is changing, and no action is needed. Stalled: it stays
as it is until an operator changes something; the message says what. Neighbours: `status` shows them;
`local.instances` and `local.reconciler` have the state of the pools' processes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from functions.api.ids import DEFAULT_CHANNEL, INCOMING, Digest
from functions.api.kinds.inference_service import InferenceService
from functions.api.kinds.model import Model
from functions.api.kinds.quantities import expiry_unix_s
from functions.api.kinds.tenant import Tenant
from functions.api.loader import Loaded
from functions.api.snapshot import ModelEntry, Snapshot, VersionEntry
from functions.controller.local.instances import Instance
from functions.controller.local.plan import replica_ids
from functions.controller.local.reconciler import DesiredFleet
from functions.decisions.rollout.lifecycle import Rollout
from functions.decisions.rollout.messages import rollout_text
from functions.fleet.heartbeat import Heartbeat

State = Literal["Ready", "Reconciling", "Stalled"]
ORDER: dict[State, int] = {"Stalled": 0, "Reconciling": 1, "Ready": 2}
SHOWN_PER_KIND = 200
AT_ZERO = "Asleep"
_WOKEN = "the next request starts it"
FAILED = "(failed "  # beginning of an agent's reason, see `functions.decisions.adapters.plan`


@dataclass(frozen=True, slots=True)
class ObjectCondition:
    kind: str
    name: str
    state: State
    reason: str  # one CamelCase word
    message: str


@dataclass(frozen=True, slots=True)
class ObservedState:
    snapshot: Snapshot | None  # last published snapshot
    is_current: bool  # the snapshot is the desired revision's
    problems: tuple[str, ...]  # objects that the snapshot leaves out, with the reason
    held: tuple[str, ...]  # channels that wait for their new version
    rollouts: tuple[Rollout, ...]  # active or halted
    heartbeats: tuple[Heartbeat, ...]
    now_unix_s: float


@dataclass(frozen=True, slots=True)
class Conditions:
    counts: Mapping[str, Mapping[State, int]]  # by kind, over all objects
    listed: tuple[ObjectCondition, ...]  # bounded; objects that are not ready come first


def conditions(loaded: Loaded, pools: Iterable[ObjectCondition], seen: ObservedState) -> Conditions:
    """Return the conditions of all objects; `pools` are the target's own, one for each InferenceService."""
    entries = {str(model.id): model for model in seen.snapshot.models} if seen.snapshot is not None else {}
    ready: dict[str, list[Heartbeat]] = {}
    for heartbeat in seen.heartbeats:
        if heartbeat.phase == "ready":
            ready.setdefault(heartbeat.pool, []).append(heartbeat)
    found = [*pools]
    at_zero = frozenset(each.name for each in found if each.reason == AT_ZERO)
    for declared in loaded.objects:
        value = declared.value
        if isinstance(value, Model):
            found.append(_model(value, entries.get(value.spec.id), ready, seen, at_zero))
        elif isinstance(value, Tenant):
            found.append(_tenant(value, seen))
        elif not isinstance(value, InferenceService):
            found.append(_in_snapshot(value.kind, value.metadata.name, seen))
    counts: dict[str, dict[State, int]] = {}
    for condition in found:
        of_kind = counts.setdefault(condition.kind, {"Ready": 0, "Reconciling": 0, "Stalled": 0})
        of_kind[condition.state] += 1
    return Conditions(counts, tuple(_listed(found)))


def _listed(found: list[ObjectCondition]) -> Iterator[ObjectCondition]:
    """Yield the conditions in order of state, kind and name, at most SHOWN_PER_KIND of each kind and without ready
    tenants."""
    taken: dict[str, int] = {}
    for condition in sorted(found, key=lambda each: (ORDER[each.state], each.kind, each.name)):
        taken[condition.kind] = taken.get(condition.kind, 0) + 1
        if taken[condition.kind] <= SHOWN_PER_KIND and (condition.kind != "Tenant" or condition.state != "Ready"):
            yield condition


def _in_snapshot(kind: str, name: str, seen: ObservedState) -> ObjectCondition:
    if seen.is_current:
        return ObjectCondition(kind, name, "Ready", "Published", "in force")
    return ObjectCondition(kind, name, "Reconciling", "NotPublished", "gateways do not have it yet")


def _tenant(tenant: Tenant, seen: ObservedState) -> ObjectCondition:
    name, keys = tenant.metadata.name, tenant.spec.keys
    valid = [key for key in keys if key.expires is None or expiry_unix_s(key.expires) > seen.now_unix_s]
    if not keys:
        return ObjectCondition("Tenant", name, "Stalled", "NoKey", "the tenant has no key: add one under spec.keys")
    if not valid:
        return ObjectCondition(
            "Tenant", name, "Stalled", "KeysExpired", "every key has expired: add one under spec.keys"
        )
    return _in_snapshot("Tenant", name, seen)


def _model(
    model: Model,
    entry: ModelEntry | None,
    ready: Mapping[str, list[Heartbeat]],
    seen: ObservedState,
    at_zero: frozenset[str],
) -> ObjectCondition:
    id_ = model.spec.id
    left_out = _problem_naming(id_, seen.problems)
    rolling = [row for row in seen.rollouts if row.model == id_]
    if rolling:
        return _rolling(id_, rolling)
    held = [flip for flip in seen.held if flip.startswith(f"{id_}:")]
    if held:
        return _held(id_, "; ".join(held), entry, ready)
    if entry is not None and not entry.versions:
        entry = None
    if left_out or (entry is None and seen.is_current):
        return ObjectCondition("Model", id_, "Stalled", "LeftOut", left_out or "left out of the snapshot")
    if entry is None or not seen.is_current:
        return ObjectCondition("Model", id_, "Reconciling", "NotPublished", "gateways do not have it as declared yet")
    if entry.pool in at_zero:
        return ObjectCondition("Model", id_, "Ready", AT_ZERO, f"the pool {entry.pool} is asleep: {_WOKEN}")
    return _served(entry, ready.get(entry.pool, []))


def _rolling(id_: str, rollouts: list[Rollout]) -> ObjectCondition:
    """Return the condition of a model with rollouts: Stalled if one was rolled back, because it waits for another
    version or for a resume; otherwise Reconciling, because active ones continue by themselves."""
    words = "; ".join(rollout_text(row) for row in rollouts)
    if any(row.state == "rolled_back" for row in rollouts):
        return ObjectCondition("Model", id_, "Stalled", "RolloutHalted", words)
    return ObjectCondition("Model", id_, "Reconciling", "RollingOut", words)


def _held(id_: str, flips: str, entry: ModelEntry | None, ready: Mapping[str, list[Heartbeat]]) -> ObjectCondition:
    """Return the condition of a channel that waits for its new version: Stalled if replicas failed to load that
    version, otherwise Reconciling."""
    if entry is None or INCOMING not in entry.channels:
        return ObjectCondition("Model", id_, "Reconciling", "Loading", flips)
    coming = next(version for version in entry.versions if version.name == entry.channels[INCOMING])
    why_not = _failure_text(coming, ready.get(entry.pool, []))
    if FAILED in why_not:
        return ObjectCondition("Model", id_, "Stalled", "NotLoadable", flips + why_not)
    return ObjectCondition("Model", id_, "Reconciling", "Loading", flips + why_not)


def _served(entry: ModelEntry, replicas: list[Heartbeat]) -> ObjectCondition:
    if not replicas:
        return ObjectCondition(
            "Model", entry.id, "Reconciling", "NoReplica", f"no replica of pool {entry.pool} is ready"
        )
    return _base(entry, replicas) if entry.type == "base" else _adapter(entry, replicas)


def _base(entry: ModelEntry, replicas: list[Heartbeat]) -> ObjectCondition:
    """Return the condition of a base: Stalled if a ready replica reports weights that no version declares, otherwise
    Ready with the count of each version. Replicas without a report count as declared."""
    names = {version.digest: version.name for version in entry.versions}
    loaded = [Digest(each.weights_digest) for each in replicas if each.weights_digest]
    others = [digest for digest in loaded if digest not in names]
    if others:
        words = f"{len(others)} of {len(replicas)} replicas have loaded weights that no version declares: {others[0]}"
        return ObjectCondition("Model", entry.id, "Stalled", "OtherWeights", words)
    counts = Counter(names[digest] for digest in loaded)
    which = f": {', '.join(f'{name} on {count}' for name, count in sorted(counts.items()))}" if len(counts) > 1 else ""
    return ObjectCondition("Model", entry.id, "Ready", "Served", f"on {len(replicas)} replicas{which}")


def _adapter(entry: ModelEntry, replicas: list[Heartbeat]) -> ObjectCondition:
    """Return Ready if the version of the default channel (without one, of the first channel or the first version) is
    loaded on every ready replica, otherwise Reconciling."""
    versions = {version.name: version for version in entry.versions}
    default = entry.channels.get(DEFAULT_CHANNEL) or next(iter(entry.channels.values()), None)
    version = versions[default] if default is not None else entry.versions[0]
    have = sum(version.engine_name in heartbeat.adapters for heartbeat in replicas)
    where = f"{version.name} loaded on {have} of {len(replicas)} replicas"
    if have == 0:
        return ObjectCondition("Model", entry.id, "Reconciling", "NotLoaded", where + _failure_text(version, replicas))
    state: State = "Ready" if have == len(replicas) else "Reconciling"
    return ObjectCondition("Model", entry.id, state, "Loaded" if state == "Ready" else "Loading", where)


def _failure_text(version: VersionEntry, replicas: list[Heartbeat]) -> str:
    words = next((heartbeat.reason for heartbeat in replicas if version.engine_name in heartbeat.reason), "")
    return f": {words}" if words else ""


def _problem_naming(id_: str, problems: Iterable[str]) -> str:
    """Return the first problem that names this model; "" if none does."""
    return next((p for p in problems if f" {id_} " in p or f" {id_}@" in p or f" {id_}:" in p), "")


# Conditions of pools on one machine: one for each pool that is declared or still being removed.


GIVEN_UP_AFTER_FAILURES = 3  # failures after which success is unlikely; retries continue


def pool_conditions(loaded: Loaded, wanted: DesiredFleet, instances: Iterable[Instance]) -> list[ObjectCondition]:
    by_pool: dict[str, list[Instance]] = {}
    for instance in instances:
        if instance.spec.pool is not None:
            by_pool.setdefault(instance.spec.pool, []).append(instance)
    declared = {service.value.pool for service in loaded.objects_of(InferenceService)}
    pools = {pool.name: pool for pool in wanted.pools}
    found = [
        _pool(name, replica_ids(pool, wanted.target.replicas), by_pool.get(name, []), wanted)
        for name, pool in sorted(pools.items())
    ]
    found += [_removing(name, by_pool[name]) for name in sorted(by_pool.keys() - pools.keys())]
    missing = sorted(pool for pool in declared if pool is not None and pool not in pools)
    words = "its processes are started next"
    return [
        *found,
        *(ObjectCondition("InferenceService", name, "Reconciling", "NotStarted", words) for name in missing),
    ]


def _removing(name: str, instances: list[Instance]) -> ObjectCondition:
    words = f"{len(instances)} processes are drained, then ended"
    return ObjectCondition("InferenceService", name, "Reconciling", "Removing", words)


def _pool(name: str, wanted_ids: list[str], instances: list[Instance], wanted: DesiredFleet) -> ObjectCondition:
    serving = [i for i in instances if i.state.phase != "draining"]
    ready = [
        replica_id
        for replica_id in wanted_ids
        if all(i.state.phase == "ready" for i in serving if i.spec.replica_id == replica_id)
        and any(i.spec.replica_id == replica_id for i in serving)
    ]
    words = f"{len(ready)} of {len(wanted_ids)} replicas are ready"
    if not wanted_ids and not serving and wanted.settled:
        return ObjectCondition("InferenceService", name, "Ready", AT_ZERO, f"scaled to zero: {_WOKEN}")
    failing = [i for i in serving if i.state.phase != "ready" and i.state.failures >= GIVEN_UP_AFTER_FAILURES]
    if failing:
        worst = max(failing, key=lambda i: i.state.failures)
        why = f"{worst.name} failed {worst.state.failures} times: {worst.state.reason or worst.state.last_exit}"
        return ObjectCondition("InferenceService", name, "Stalled", "Failing", f"{words}; {why}")
    if wanted.stalled and any(replica_id in wanted.stalled for replica_id in wanted_ids):
        return ObjectCondition("InferenceService", name, "Stalled", "NotReadyAgain", f"{words}; {wanted.stalled}")
    if len(ready) < len(wanted_ids):
        late = [i for i in serving if i.state.phase != "ready"]
        why = f"; {late[0].name} is {late[0].state.phase}" if late else ""
        reason = f": {late[0].state.reason}" if late and late[0].state.reason else ""
        return ObjectCondition("InferenceService", name, "Reconciling", "Starting", words + why + reason)
    if not wanted.settled:
        return ObjectCondition(
            "InferenceService", name, "Reconciling", "Changing", f"{words}; processes are being changed"
        )
    return ObjectCondition("InferenceService", name, "Ready", "Serving", words)
