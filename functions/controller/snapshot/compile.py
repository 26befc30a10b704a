"""From YAML objects to the snapshot: pure, total, and the same for the same content.

What is whole goes in. A model version whose artifact has no digest yet is left out, a channel that points at it with
it, and each is a problem to report; the rest goes on. Everything is sorted by name, so that neither the order of files
nor that of documents ever changes the content's hash (test_order_of_input_never_changes_the_hash).

Neighbours: `functions.api.loader` gives the objects, `resolve` the digests; `compile_policies` translates the policies;
`publish` sends the result.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from functions.api.declared import Declared, of_kind
from functions.api.ids import Digest, EngineName, KeyId, ModelId, PoolName, TenantId, engine_name
from functions.api.kinds.admission_policy import AdmissionPolicy
from functions.api.kinds.applications import Tool
from functions.api.kinds.autoscaling_policy import AutoscalingPolicy
from functions.api.kinds.catalogue import AnyObject
from functions.api.kinds.expiry import expiry_unix_s
from functions.api.kinds.inference_service import InferenceService
from functions.api.kinds.model import Model, Version
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
from functions.controller.snapshot.compile_policies import (
    admission_entry,
    autoscaling_entry,
    quota_entry,
    quota_limits,
    rollout_entry,
    routing_entry,
)


@dataclass(frozen=True, slots=True)
class Compiled:
    snapshot: Snapshot
    problems: tuple[Problem, ...]  # what was left out, and why


@dataclass(frozen=True, slots=True)
class _Frame:
    """What models are compiled against; `problems` is added to."""

    digests: Mapping[str, Digest]
    pools: Collection[PoolName]
    rollouts: Collection[str]
    problems: list[Problem]


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Entry = TypeVar("Entry", bound=_Named)


def compile_snapshot(
    objects: Iterable[Declared[AnyObject]],
    digests: Mapping[str, Digest],
    *,
    epoch: int,
    revision: str,
    compiled_unix_s: float,
) -> Compiled:
    """`digests` maps artifact URIs to what they hold now; a version that pins its digest needs no entry."""
    declared = list(objects)
    problems: list[Problem] = []
    tenants = sorted(of_kind(declared, Tenant), key=lambda tenant: tenant.value.metadata.name)
    models = sorted(of_kind(declared, Model), key=lambda model: model.value.spec.id)
    pools = sorted(_pools(of_kind(declared, InferenceService)), key=lambda pool: pool.name)
    keys = [_key(tenant.value, key) for tenant in tenants for key in tenant.value.spec.keys]
    names = {pool.name for pool in pools}
    rollouts = {policy.value.metadata.name: rollout_entry(policy.value) for policy in of_kind(declared, RolloutPolicy)}
    frame = _Frame(digests, names, frozenset(rollouts), problems)
    entries = [entry for model in models if (entry := _model(model, frame)) is not None]
    snapshot = Snapshot(
        schema_version=SCHEMA_VERSION,
        epoch=epoch,
        revision=revision,
        compiled_unix_s=compiled_unix_s,
        tenants=tuple(_tenant(tenant.value) for tenant in tenants),
        keys=tuple(sorted(keys, key=lambda key: key.key_id)),
        models=tuple(entries),
        pools=tuple(pools),
        quotas=_by_name(quota_entry(policy.value) for policy in of_kind(declared, QuotaPolicy)),
        routing=_by_name(routing_entry(policy.value) for policy in of_kind(declared, RoutingPolicy)),
        admission=_by_name(admission_entry(policy.value) for policy in of_kind(declared, AdmissionPolicy)),
        rollouts=_by_name(rollouts.values()),
        autoscaling=_by_name(_autoscaling(of_kind(declared, AutoscalingPolicy), names, problems)),
    )
    return Compiled(snapshot, tuple(sorted(problems)))


def unpinned_artifacts(objects: Iterable[Declared[AnyObject]]) -> list[str]:
    """The artifact URIs whose digests `compile_snapshot` will ask for, sorted."""
    models = of_kind(objects, Model)
    return sorted({version.artifact for model in models for version in model.value.spec.versions if not version.digest})


def _by_name(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.name))


def _autoscaling(
    policies: Iterable[Declared[AutoscalingPolicy]], pools: Collection[PoolName], problems: list[Problem]
) -> Iterator[AutoscalingEntry]:
    for policy in policies:
        if policy.value.spec.pool in pools:
            yield autoscaling_entry(policy.value)
        else:
            message = f"left out: there is no pool {shown(policy.value.spec.pool)}"
            problems.append(policy.problem(["spec", "pool"], message))


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


def _pools(services: Iterable[Declared[InferenceService]]) -> Iterator[PoolEntry]:
    for service in services:
        pool, context_window_tokens = service.value.pool, service.value.context_window_tokens
        if pool is None or context_window_tokens is None:
            continue  # somebody else's service; the loader lets no pool of ours pass without a context window
        least, most = service.value.replica_bounds
        yield PoolEntry(
            name=PoolName(pool),
            context_window_tokens=context_window_tokens,
            min_replicas=least,
            max_replicas=most,
            task=service.value.task,
        )


def _model(model: Declared[Model], frame: _Frame) -> ModelEntry | None:
    spec, problems = model.value.spec, frame.problems
    pool = PoolName(spec.id if spec.type == "base" else spec.base or "")
    if pool not in frame.pools:
        problems.append(model.problem(["spec", "base"], f"left out: there is no pool {shown(pool)}"))
        return None
    versions = sorted(_versions(model, pool, frame), key=lambda version: version.name)
    if not versions:
        problems.append(model.problem(["spec", "id"], f"{spec.id} is left out: none of its versions has an artifact"))
        return None
    return ModelEntry(
        id=ModelId(spec.id),
        pool=pool,
        type=spec.type,
        versions=tuple(versions),
        channels=dict(_channels(model, {version.name for version in versions}, problems)),
        declared_in=model.place.file,  # without the line: an edit above a model must not change it
        rollout=spec.rollout if spec.rollout in frame.rollouts else "",
    )


def _versions(model: Declared[Model], pool: PoolName, frame: _Frame) -> Iterator[VersionEntry]:
    spec = model.value.spec
    for index, version in enumerate(spec.versions):
        digest = _digest(version, frame.digests)
        if digest is None:
            message = f"{spec.id}@{version.name} is left out: nothing is published at {version.artifact}"
            frame.problems.append(model.problem(["spec", "versions", index], message))
            continue
        yield VersionEntry(
            name=version.name,
            digest=digest,
            engine_name=engine_name(ModelId(spec.id), digest) if spec.type == "lora" else EngineName(pool),
            artifact_uri=version.artifact,
        )


def _digest(version: Version, digests: Mapping[str, Digest]) -> Digest | None:
    return Digest(version.digest) if version.digest is not None else digests.get(version.artifact)


def _channels(model: Declared[Model], versions: set[str], problems: list[Problem]) -> Iterator[tuple[str, str]]:
    spec = model.value.spec
    for channel, version in sorted(spec.channels.items()):
        if version in versions:
            yield channel, version
        else:
            message = f"{spec.id}:{channel} is left out: its version {version} is"
            problems.append(model.problem(["spec", "channels", channel], message))
