"""Limits of a plan: changes that no simulated figure can show. Pure.

Two snapshots are compared field by field, and two InferenceServices leaf by leaf. Everything outside the tables of
simulated fields is listed, so a field that is added later is listed until it is simulated. Related modules: `notes`
has unsimulated parts that did not change; `functions.controller.gitops.changes` describes all changes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from functions.api.kinds.inference_service import (
    CAPACITY_ANNOTATION,
    DEDICATED_TO_ANNOTATION,
    PRICE_ANNOTATION,
    QUANTIZATION_ANNOTATION,
)
from functions.api.kinds.prefill_role import KV_BYTES_ANNOTATION, KV_RATE_ANNOTATION
from functions.api.snapshot import Snapshot
from functions.api.snapshot_comparison import name_of
from functions.api.snapshot_entries import SECTIONS
from functions.decisions.capacity.service import ARCHITECTURE_ANNOTATION
from functions.simulator.plan.declarations import PoolDeclaration, arguments_of, leaves
from functions.simulator.plan.profiles import PROFILE_ANNOTATION

# Snapshot fields that the simulated fleet obeys, or that affect no decision (such as names).
SIMULATED = MappingProxyType(
    {
        "admission": frozenset({"name", "pools", "bands", "max_queued_tokens"}),
        "autoscaling": frozenset({"name", "pool", "min_replicas", "max_replicas", "warm", "scale_up", "scale_down",
                                  "idle_after_s"}),
        "pools": frozenset({"name", "context_window_tokens", "min_replicas", "max_replicas",
                            "price_per_accelerator_hour", "model", "dedicated_to", "quantization", "spot", "role",
                            "kv_bytes_per_token", "kv_transfer_bytes_per_s"}),
        "quotas": frozenset({"name", "weight", "limits"}),
        "routing": frozenset({"name", "pools", "session_ttl_s", "bounded_load", "spread_above_utilization_ratio",
                              "fallback", "prefix_source", "retry_max_attempts", "retry_budget_ratio", "placement",
                              "hedge_after_s", "prefill_min_prompt_tokens", "prefill_give_up_after_s"}),
        "tenants": frozenset({"name", "tier", "pools"}),
        "models": frozenset({"id", "declared_in"}),
    }
)  # fmt: skip
WHY = MappingProxyType(
    {
        "keys": "keys do not change the traffic",
        "tenants": "what a tenant may call, and its conversations and tools, do not change a recorded trace",
        "models": "versions and channels of models: loading another artifact is not simulated",
        "rollouts": "how a version is rolled out: no version changes during the trace",
        "routing": "the simulated gateway does not do this",
        "pools": "the simulated engine only generates text",
    }
)
SIMULATED_ARGS = frozenset({
    "--max-num-seqs", "--max-num-batched-tokens", "--max-loras", "--max-cpu-loras", "--max-model-len",
    "--gpu-memory-utilization", "--kv-cache-dtype", "--tensor-parallel-size", "--pipeline-parallel-size", "--dtype",
    "--quantization", "--enable-lora", "--max-lora-rank",
})  # fmt: skip
SIMULATED_ENVIRONMENT = frozenset({"VLLM_CPU_KVCACHE_SPACE"})
_PREDICTOR = ("spec", "predictor")
_ACCELERATORS = ("nvidia.com/gpu", "amd.com/gpu", "intel.com/gpu")
_SIMULATED_LEAVES: tuple[tuple[str, ...], ...] = (
    ("metadata", "name"), ("metadata", "labels"),
    ("metadata", "annotations", PROFILE_ANNOTATION), ("metadata", "annotations", ARCHITECTURE_ANNOTATION),
    ("metadata", "annotations", PRICE_ANNOTATION), ("metadata", "annotations", DEDICATED_TO_ANNOTATION),
    ("metadata", "annotations", KV_BYTES_ANNOTATION), ("metadata", "annotations", KV_RATE_ANNOTATION),
    ("metadata", "annotations", CAPACITY_ANNOTATION), ("metadata", "annotations", QUANTIZATION_ANNOTATION),
    (*_PREDICTOR, "minReplicas"), (*_PREDICTOR, "maxReplicas"), (*_PREDICTOR, "nodeSelector"),
    (*_PREDICTOR, "model", "storageUri"), (*_PREDICTOR, "model", "args"), (*_PREDICTOR, "model", "env"),
    *((*_PREDICTOR, "model", "resources", kind, name) for kind in ("limits", "requests") for name in _ACCELERATORS),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unsimulated:
    """A change that is not simulated."""

    what: str
    why: str


def unsimulated(
    before: Snapshot, after: Snapshot, was: Sequence[PoolDeclaration], is_: Sequence[PoolDeclaration]
) -> tuple[Unsimulated, ...]:
    """Return the changes by section and pool; a change common to many entries is one item with their number."""
    return (*_entries(before, after), *_half_played(before, after), *_services(was, is_))


def _entries(before: Snapshot, after: Snapshot) -> Iterator[Unsimulated]:
    for section in SECTIONS:
        named = name_of(section)
        old = {named(entry): entry for entry in getattr(before, section)}
        new = {named(entry): entry for entry in getattr(after, section)}
        known = SIMULATED.get(section, frozenset())
        touched: Counter[str] = Counter()
        example: dict[str, str] = {}
        for name in sorted({*old, *new}):
            for field in _changed(old.get(name), new.get(name), whole=not known):
                if field not in known:
                    touched[field] += 1
                    example.setdefault(field, name)
        for field, count in touched.items():
            yield Unsimulated(_words(section, field, example[field], count), WHY.get(section, "it is not simulated"))


def _half_played(before: Snapshot, after: Snapshot) -> Iterator[Unsimulated]:
    """Yield changes to values that are not simulated, of fields that otherwise are."""
    sources = {entry.name: entry.prefix_source for entry in before.routing}
    for routing in after.routing:
        if routing.prefix_source == "bloom" != sources.get(routing.name):
            yield Unsimulated(f"routing {routing.name}: prefix.source bloom", "it is simulated as `sent`")
    limits = {quota.name: quota.limits.gpu_seconds_per_hour for quota in before.quotas}
    for quota in after.quotas:
        if quota.limits.gpu_seconds_per_hour != limits.get(quota.name):
            yield Unsimulated(f"quota {quota.name}: gpuSecondsPerHour", "the simulation charges no accelerator seconds")


def _changed(old: Any, new: Any, *, whole: bool) -> Iterable[str]:
    """Return the fields that differ; for an added or removed entry, those with values other than the defaults. With
    `whole`, "" stands for all fields."""
    if old is None or new is None:
        present = new if old is None else old
        return [""] if whole else [name for name in present.__struct_fields__ if _says(present, name)]
    if old == new:
        return []
    if whole:
        return [""]
    return [name for name in new.__struct_fields__ if getattr(old, name) != getattr(new, name)]


def _says(entry: Any, name: str) -> bool:
    """Return True if an optional field differs from its default; required fields do not count."""
    defaults = dict(zip(entry.__struct_fields__[-len(entry.__struct_defaults__) :], entry.__struct_defaults__,
                        strict=True)) if entry.__struct_defaults__ else {}  # fmt: skip
    return name in defaults and getattr(entry, name) != defaults[name]


def _words(section: str, field: str, example: str, count: int) -> str:
    kind = section.removesuffix("s") if section != "quotas" else "quota"
    told = f"{kind} {example}" if count == 1 else f"{count} {section}, {example} among them"
    return f"{told}: {field}" if field else told


def _services(was: Sequence[PoolDeclaration], is_: Sequence[PoolDeclaration]) -> Iterator[Unsimulated]:
    old, new = ({each.pool: each for each in side} for side in (was, is_))
    for pool in sorted({*old, *new}):
        before, after = old.get(pool), new.get(pool)
        if before is None or after is None:
            continue  # added and removed pools are simulated completely
        for option in _differing(arguments_of(before), arguments_of(after)):
            if option not in SIMULATED_ARGS:
                yield Unsimulated(f"pool {pool}: {option}", "the simulated engine has no such argument")
        for name in _differing(_environment(before), _environment(after)):
            if name not in SIMULATED_ENVIRONMENT:
                yield Unsimulated(f"pool {pool}: env {name}", "the simulated engine has no environment")
        for path in _differing(dict(leaves(before.document)), dict(leaves(after.document))):
            if not any(path[: len(known)] == known for known in _SIMULATED_LEAVES):
                yield Unsimulated(f"pool {pool}: {'.'.join(path)}", "how Kubernetes runs it is not simulated")


def _differing(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> list[Any]:
    missing = object()
    return sorted(key for key in {*old, *new} if old.get(key, missing) != new.get(key, missing))


def _environment(declaration: PoolDeclaration) -> dict[str, str | None]:
    model = declaration.service.spec.predictor.model
    return {each.name: each.value for each in model.env} if model is not None else {}
