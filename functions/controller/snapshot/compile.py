"""Compile YAML objects into the snapshot. Pure; equal content always gives an equal snapshot.

A model version whose artifact has no digest yet is left out, and so is a channel that points at it; each is reported
as a problem, and the rest is compiled. An adapter without any version stays as a name that cannot be called: the
registry's API must not accept an id that git declares. Everything is sorted by name, so that the order of files or
documents never changes the content's hash (test_input_order_does_not_change_the_hash).

Neighbours: `functions.api.loader` loads the objects, `resolve` finds the digests, `compile_policies` translates the
policies, `publish` sends the result.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import assert_never

import msgspec

from functions.api.declared import Accepted, Declared, of_kind, policy_minima
from functions.api.ids import Digest, EngineName, KeyId, ModelId, PoolName, TenantId, engine_name
from functions.api.kinds import kv_offload, prefill_role
from functions.api.kinds.admission_policy import AdmissionPolicy
from functions.api.kinds.applications import Tool
from functions.api.kinds.autoscaling_policy import AutoscalingPolicy
from functions.api.kinds.catalogue import AnyObject
from functions.api.kinds.inference_service import InferenceService, max_adapters, max_lora_rank
from functions.api.kinds.model import Model, ModelSpec, Version
from functions.api.kinds.quantities import expiry_unix_s
from functions.api.kinds.quota_policy import QuotaPolicy
from functions.api.kinds.rollout_policy import RolloutPolicy
from functions.api.kinds.routing_policy import RoutingPolicy
from functions.api.kinds.tenant import ApiKey, Tenant
from functions.api.problems import Problem, shown
from functions.api.snapshot import (
    SCHEMA_VERSION,
    AutoscalingEntry,
    ConversationsPart,
    KeyEntry,
    ModelEntry,
    PoolEntry,
    Snapshot,
    TenantEntry,
    ToolEntry,
    VersionEntry,
)
from functions.api.snapshot_comparison import in_order
from functions.api.snapshot_entries import SECTIONS, AnyEntry
from functions.controller.snapshot.compile_policies import (
    admission_entry,
    autoscaling_entry,
    quota_entry,
    quota_limits,
    rollout_entry,
    routing_entry,
)
from functions.decisions.capacity.service import accelerators_per_replica


@dataclass(frozen=True, slots=True)
class Compiled:
    snapshot: Snapshot
    problems: tuple[Problem, ...]  # objects that were left out, with the reason


@dataclass(frozen=True, slots=True)
class _Frame:
    """Context of a compilation; `problems` is appended to."""

    digests: Mapping[str, Digest]
    pools: Collection[str]
    rollouts: Collection[str]
    minima: Mapping[str, int]  # minimum of replicas by pool, from its AutoscalingPolicy
    problems: list[Problem]


def compile_snapshot(
    objects: Iterable[Declared[AnyObject]],
    digests: Mapping[str, Digest],
    *,
    epoch: int,
    revision: str,
    compiled_unix_s: float,
) -> Compiled:
    """Compile the snapshot, and the problems of what was left out. `digests` has the present digest of each artifact
    URI; versions with a pinned digest need none."""
    declared = list(objects)
    services = (service.value for service in of_kind(declared, InferenceService))
    pools = frozenset(service.pool for service in services if service.pool is not None)
    rollouts = frozenset(policy.value.metadata.name for policy in of_kind(declared, RolloutPolicy))
    frame = _Frame(digests, pools, rollouts, policy_minima(declared), [])
    by_type: dict[type, list[AnyEntry]] = {}
    for entry in (entry for each in declared for entry in _entries(each, frame)):
        by_type.setdefault(type(entry), []).append(entry)
    sections = {section: tuple(in_order(section, by_type.get(type_, ()))) for section, (type_, _) in SECTIONS.items()}
    snapshot = Snapshot(
        schema_version=SCHEMA_VERSION,
        epoch=epoch,
        revision=revision,
        compiled_unix_s=compiled_unix_s,
        **sections,  # type: ignore[arg-type]  # by name, each of its own type
    )
    return Compiled(snapshot, tuple(sorted(frame.problems)))


def unpinned_artifacts(objects: Iterable[Declared[AnyObject]]) -> list[str]:
    """Return the artifact URIs whose digests `compile_snapshot` needs, sorted."""
    models = of_kind(objects, Model)
    return sorted({version.artifact for model in models for version in model.value.spec.versions if not version.digest})


def _entries(declared: Declared[AnyObject], frame: _Frame) -> Iterator[AnyEntry]:
    """Yield the entries of one object; add the problems of those left out to `frame`. Every kind is mapped here."""
    if isinstance(declared, Accepted):
        yield from _as_accepted(declared, frame)
        return
    match declared.value:
        case Tenant() as tenant:
            yield _tenant(tenant)
            yield from (_key(tenant, key) for key in tenant.spec.keys)
        case Model():
            yield from _model(declared, declared.value, frame)
        case InferenceService() as service:
            yield from _pool(service, frame)
        case AutoscalingPolicy() as policy:
            yield from _in_a_pool(declared, autoscaling_entry(policy), frame)
        case QuotaPolicy() as policy:
            yield quota_entry(policy)
        case RoutingPolicy() as policy:
            yield routing_entry(policy)
        case AdmissionPolicy() as policy:
            yield admission_entry(policy)
        case RolloutPolicy() as policy:
            yield rollout_entry(policy)
        case never:
            assert_never(never)


def _as_accepted(accepted: Accepted[AnyObject], frame: _Frame) -> Iterator[AnyEntry]:
    """Yield the accepted entries that stand in for an invalid object, without references to rollout policies that no
    longer exist, and without entries whose pool no longer exists."""
    for entry in accepted.entries:
        match entry:
            case ModelEntry() if entry.pool in frame.pools and entry.rollout not in frame.rollouts:
                yield msgspec.structs.replace(entry, rollout="")
            case ModelEntry() | AutoscalingEntry():
                yield from _in_a_pool(accepted, entry, frame)
            case _:
                yield entry


def _in_a_pool(
    declared: Declared[AnyObject], entry: ModelEntry | AutoscalingEntry, frame: _Frame
) -> Iterator[ModelEntry | AutoscalingEntry]:
    """Yield the entry if the pool that it names is declared; otherwise add a problem to `frame`."""
    if entry.pool in frame.pools:
        yield entry
    else:
        key = "pool" if isinstance(entry, AutoscalingEntry) else "base"
        frame.problems.append(declared.problem(["spec", key], f"left out: there is no pool {shown(entry.pool)}"))


def _tenant(tenant: Tenant) -> TenantEntry:
    kept = tenant.spec.conversations
    return TenantEntry(
        name=TenantId(tenant.metadata.name),
        tier=tenant.spec.tier,
        models=tuple(sorted(set(tenant.spec.models))),
        cache_salt=tenant.spec.isolation.cache_salt,
        context_overflow=tenant.spec.context_overflow,
        conversations=ConversationsPart(kept.ttl_s, kept.max_tokens) if kept.store else None,
        tools=tuple(_tool(tool) for tool in sorted(tenant.spec.tools, key=lambda tool: tool.name)),
        pools=tenant.spec.isolation.pools,
    )


def _tool(tool: Tool) -> ToolEntry:
    return ToolEntry(
        name=tool.name,
        description=tool.description,
        url=tool.url,
        parameters=tool.parameters,
        timeout_s=tool.timeout_s,
        max_calls=tool.max_calls,
        max_bytes=tool.max_bytes,
        secret=tool.secret or "",
    )


def _key(tenant: Tenant, key: ApiKey) -> KeyEntry:
    return KeyEntry(
        key_id=KeyId(key.id),
        tenant=TenantId(tenant.metadata.name),
        hmac_sha256=key.hmac_sha256,
        scopes=tuple(sorted(set(key.scopes))),
        max_class=key.max_class,
        expires_unix_s=expiry_unix_s(key.expires) if key.expires is not None else None,
        limits=quota_limits(key.limits) if key.limits is not None else None,
    )


def _pool(service: InferenceService, frame: _Frame) -> Iterator[PoolEntry]:
    pool, context_window_tokens = service.pool, service.context_window_tokens
    if pool is None or context_window_tokens is None:
        return  # not a pool of ours; the loader rejects our pools without a context window
    least, most = service.bounds_under(frame.minima.get(pool))
    args = service.spec.predictor.model.args if service.spec.predictor.model is not None else ()
    yield PoolEntry(
        name=PoolName(pool),
        context_window_tokens=context_window_tokens,
        min_replicas=least,
        max_replicas=most,
        task=service.task,
        max_adapters=max_adapters(args),
        max_lora_rank=max_lora_rank(args),
        accelerators_per_replica=accelerators_per_replica(service),
        price_per_accelerator_hour=service.price_per_accelerator_hour or 0.0,
        model=service.model_name if service.model_name not in {None, pool} else "",
        dedicated_to=tuple(TenantId(tenant) for tenant in service.dedicated_to),
        quantization=service.quantization,
        spot=service.is_spot,
        role=service.role,
        kv_bytes_per_token=prefill_role.kv_bytes_per_token(service.metadata.annotations) or 0,
        kv_transfer_bytes_per_s=prefill_role.kv_transfer_bytes_per_s(service.metadata.annotations) or 0.0,
        kv_host_bytes=service.kv_host_bytes or 0,
        kv_reload_bytes_per_s=kv_offload.reload_bytes_per_s(service.metadata.annotations) or 0.0,
    )


def _model(declared: Declared[AnyObject], model: Model, frame: _Frame) -> Iterator[ModelEntry]:
    spec, problems = model.spec, frame.problems
    if model.pool not in frame.pools:
        problems.append(declared.problem(["spec", "base"], f"left out: there is no pool {shown(model.pool)}"))
        return
    versions = sorted(_versions(declared, model, frame), key=lambda version: version.name)
    if not versions:
        message = f"{spec.id} is left out: none of its versions has an artifact"
        problems.append(declared.problem(["spec", "id"], message))
        if spec.type != "lora":
            return
    yield ModelEntry(
        id=ModelId(spec.id),
        pool=PoolName(model.pool),
        type=spec.type,
        versions=tuple(versions),
        channels=dict(_channels(declared, spec, {version.name for version in versions}, problems)),
        declared_in=declared.place.file,  # without the line, so that an edit above a model does not change it
        rollout=spec.rollout if spec.rollout in frame.rollouts else "",
    )


def _versions(declared: Declared[AnyObject], model: Model, frame: _Frame) -> Iterator[VersionEntry]:
    spec = model.spec
    for index, version in enumerate(spec.versions):
        digest = _digest(version, frame.digests)
        if digest is None:
            message = f"{spec.id}@{version.name} is left out: nothing is published at {version.artifact}"
            frame.problems.append(declared.problem(["spec", "versions", index], message))
            continue
        yield VersionEntry(
            name=version.name,
            digest=digest,
            engine_name=engine_name(ModelId(spec.id), digest) if spec.type == "lora" else EngineName(model.pool),
            artifact_uri=version.artifact,
        )


def _digest(version: Version, digests: Mapping[str, Digest]) -> Digest | None:
    return Digest(version.digest) if version.digest is not None else digests.get(version.artifact)


def _channels(
    declared: Declared[AnyObject], spec: ModelSpec, versions: set[str], problems: list[Problem]
) -> Iterator[tuple[str, str]]:
    for channel, version in sorted(spec.channels.items()):
        if version in versions:
            yield channel, version
        else:
            message = f"{spec.id}:{channel} is left out because its version {version} is"
            problems.append(declared.problem(["spec", "channels", channel], message))
