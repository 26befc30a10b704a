"""Descriptions of an entry: labels as in the YAML, and values that can be compared and printed.

They are derived from the entry's fields, so that a new field is described without a line here: its name in camelCase,
its value with the unit at the end of the name. `_FIELDS` lists fields that the YAML names otherwise. `_TOGETHER`
lists fields that are described together, and fields whose parts are described separately.

A value is a set (additions and removals are listed), a text, a number (its change is given in percent), or a secret,
whose change alone is reported: no hash of a key ever appears.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from functions.api.ids import is_incoming
from functions.api.snapshot import (
    AdmissionEntry,
    AutoscalingEntry,
    BandEntry,
    CascadeEntry,
    ClassifierEntry,
    FallbackEntry,
    KeyEntry,
    ModelEntry,
    PoolEntry,
    QuotaEntry,
    QuotaLimitsPart,
    RolloutEntry,
    RoutingEntry,
    StageEntry,
    TenantEntry,
    VersionEntry,
)
from functions.api.snapshot_entries import SECTIONS, AnyEntry

_DIGEST_CHARS = len("sha256:") + 12
_UNITS = {"_ms": " ms", "_s": " s", "_ratio": "", "_nats": " nats"}  # removed from the label


@dataclass(frozen=True, slots=True)
class Secret:
    """A value that is compared but never shown."""

    value: str = field(repr=False)


class Absent(str):
    """Meaning of a missing value."""

    __slots__ = ()


Value = str | int | float | frozenset[str] | Secret
Facts = Mapping[str, Value]
Part = Any  # an entry or a part of one
_Describe = Callable[[Any], Facts]


@dataclass(frozen=True, slots=True)
class _Field:
    label: str = ""  # otherwise derived from the name
    absent: str = "none"  # meaning of None or an empty text
    shown: Callable[[Any], Value] | None = None  # otherwise derived from the type


def entry_facts(entry: AnyEntry, *, briefly: bool = False) -> Facts:
    """Describe an entry without its name; with `briefly`, without fields that have their default."""
    return _facts(entry, without=_name_of(type(entry)), briefly=briefly)


def key_facts(keys: Iterable[KeyEntry]) -> Facts:
    """Return the facts of one tenant's keys: their ids, and the fields of each with labels such as `key ci: scopes`."""
    held = list(keys)
    facts: dict[str, Value] = {"key": frozenset(key.key_id for key in held)}
    for key in held:
        inner_facts = _facts(key, without=("key_id", "tenant"))
        facts |= {f"key {key.key_id}: {label}": value for label, value in inner_facts.items()}
    return facts


def as_declared(entry: Any) -> Any:
    """Return the entry without parts that no file declares: rollout splits, and the channel for loading."""
    if not isinstance(entry, ModelEntry):
        return entry
    channels = {name: version for name, version in entry.channels.items() if not is_incoming(name)}
    return msgspec.structs.replace(entry, channels=channels, splits=())


def hidden_differences(old: AnyEntry, new: AnyEntry) -> Iterator[str]:
    """Yield labels of fields that differ although their descriptions are equal: the order of a list, the end of a
    digest."""
    for group, describe in _shape(new).groups:
        differs = any(getattr(old, name) != getattr(new, name) for name in group)
        if differs and describe(old) == describe(new):
            yield _label(type(new), group[0])


def _facts(part: Part, *, without: tuple[str, ...] = (), briefly: bool = False) -> Facts:
    shape = _shape(part)
    defaults = shape.defaults if briefly else {}
    facts: dict[str, Value] = {}
    for group, describe in shape.groups:
        is_default = all(name in defaults and defaults[name] == getattr(part, name) for name in group)
        if group[0] not in without and not is_default:
            facts |= describe(part)
    return facts


@dataclass(frozen=True, slots=True)
class _Shape:
    """Rules for describing every part of one type."""

    groups: tuple[tuple[tuple[str, ...], _Describe], ...]  # fields that are described together
    defaults: Mapping[str, Any]


def _shape(part: Part) -> _Shape:
    type_: Any = type(part)
    return _shape_of(type_)


@cache
def _shape_of(type_: Any) -> _Shape:
    info = inspect.type_info(type_)
    fields = info.fields if isinstance(info, inspect.StructType) else ()
    groups: dict[tuple[str, ...], _Describe] = dict(_TOGETHER.get(type_, {}))
    taken = {name for group in groups for name in group}
    groups |= {(each.name,): _derived(type_, each) for each in fields if each.name not in taken}
    by_first = {group[0]: (group, describe) for group, describe in groups.items()}
    optional = (each for each in fields if not each.required)
    return _Shape(
        tuple(by_first[each.name] for each in fields if each.name in by_first),
        {each.name: each.default_factory() if each.default is msgspec.NODEFAULT else each.default for each in optional},
    )


def _derived(type_: type[object], field: inspect.Field) -> _Describe:
    """Return a function that describes one field of a part, derived from the field's name and type."""
    name, label = field.name, _label(type_, field.name)
    known = _FIELDS.get((type_, name), _Field(absent=_ABSENT.get(type_, "none")))
    unit = next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), "")
    if _holds_named(field.type):
        return lambda part: _named_parts(label.removesuffix("s"), getattr(part, name))

    def describe(part: Part) -> Facts:
        value = getattr(part, name)
        if value is None or value == "":
            return {label: Absent(known.absent)}
        if isinstance(value, dict):
            return {f"{label} {key}": each for key, each in sorted(value.items())}
        return {label: known.shown(value) if known.shown is not None else _value(value, unit)}

    return describe


def _value(value: Any, unit: str) -> Value:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"{value:g}{unit}" if unit else value
        case str():
            return value
        case tuple() if value and isinstance(value[0], msgspec.Struct):
            return frozenset(f"{place}: {_text(part)}" for place, part in enumerate(value, 1))
        case tuple():
            return frozenset(str(each) for each in value)
        case _:
            return _text(value)


def _named_parts(label: str, parts: Iterable[Part]) -> Facts:
    held = list(parts)
    facts: dict[str, Value] = {label: frozenset(str(part.name) for part in held)}
    for part in held:
        inner_facts = _facts(part, without=("name",))
        facts |= {f"{label} {part.name}: {inner}": value for inner, value in inner_facts.items()}
    return facts


def _text(part: Part, *without: str) -> str:
    """Return all of a part in one text, without fields that have their default."""
    clauses = []
    for label, value in _facts(part, without=without, briefly=True).items():
        text = ", ".join(sorted(value)) if isinstance(value, frozenset) else f"{value}"
        clauses.append(f"{label} {text}")
    return ", ".join(clauses) or ("" if without else "all defaults")


def _remaining_text(part: Part, *described: str) -> str:
    """Return the fields of a part that are not in `described`, after a comma; empty if all have their defaults."""
    more = _text(part, *described)
    return f", {more}" if more else ""


def _label(type_: type[object], name: str) -> str:
    label = _FIELDS.get((type_, name), _Field()).label
    suffix = next((suffix for suffix in _UNITS if name.endswith(suffix)), "")
    first, *others = name.removesuffix(suffix).split("_")
    return label or first + "".join(word.capitalize() for word in others)


def _name_of(type_: type[AnyEntry]) -> tuple[str, ...]:
    return tuple(name for entry, name in SECTIONS.values() if entry is type_)


def _holds_named(type_: inspect.Type) -> bool:
    """Return True if the type is a tuple of parts that have names."""
    if not isinstance(type_, inspect.VarTupleType) or not isinstance(type_.item_type, inspect.StructType):
        return False
    return any(field.name == "name" for field in type_.item_type.fields)


# -- descriptions of several fields together ---------------------------------------------------------------------------


def _replicas(entry: PoolEntry | AutoscalingEntry) -> Facts:
    least, most = entry.min_replicas, entry.max_replicas
    return {"replicas": least if least == most else f"{least} to {most}"}


def _channels(model: ModelEntry) -> Facts:
    labels = {"version", *(_label(ModelEntry, name) for name in ModelEntry.__struct_fields__)}
    return {
        f"channel {channel}" if channel in labels else channel: version
        for channel, version in sorted(model.channels.items())
    }


def _stages(rollout: RolloutEntry) -> Facts:
    return {f"stage {stage.percent} %": _stage(stage) for stage in rollout.stages}


def _stage(stage: StageEntry) -> str:
    halts = f", halted by {' or '.join(stage.auto_halt)}" if stage.auto_halt else ""
    lasts = "to stay" if stage.duration_s is None else f"for {stage.duration_s:g} s"
    return lasts + halts + _remaining_text(stage, "percent", "duration_s", "auto_halt")


def _bands(admission: AdmissionEntry) -> Facts:
    return {
        f"{band.name} {label}": value
        for band in admission.bands
        for label, value in _facts(band, without=("name",)).items()
    }


def _move(step: FallbackEntry | CascadeEntry) -> str:
    tiers = f"for {', '.join(step.tiers)}" if step.tiers else "for all"
    return f"{step.source_pool} to {step.target_pool} {tiers}"


def _fallback(step: FallbackEntry) -> str:
    return f"{_move(step)} when {step.when}{_remaining_text(step, 'source_pool', 'target_pool', 'tiers', 'when')}"


def _cascade(step: CascadeEntry) -> str:
    judged = f"above {step.threshold_nats:g} nats ({step.measure} of {step.sample_tokens} tokens)"
    described = ("source_pool", "target_pool", "tiers", "threshold_nats", "measure", "sample_tokens")
    return f"{_move(step)} {judged}{_remaining_text(step, *described)}"


def _classifier(classifier: ClassifierEntry | None) -> Iterator[str]:
    if classifier is not None:
        more = _remaining_text(classifier, "model", "otherwise", "rules")
        yield f"{classifier.model} otherwise to {classifier.otherwise}{more}"
        for place, rule in enumerate(classifier.rules, 1):
            yield f"{classifier.model} rule {place}: {_text(rule, 'target_pool') or 'always'} to {rule.target_pool}"


def _placement(routing: RoutingEntry) -> Facts:
    rules = enumerate(routing.placement, 1)
    return {
        "placement": frozenset(
            f"rule {at}: {_text(rule, 'target_pool') or 'always'} to {rule.target_pool}" for at, rule in rules
        )
    }


def _expiry(unix_s: float) -> str:
    """Return the expiry as it was written: the day at whose end the key ends, or the moment."""
    day = datetime.fromtimestamp(unix_s - 1, tz=UTC).date().isoformat()
    return day if unix_s % 86_400 == 0 else datetime.fromtimestamp(unix_s, tz=UTC).isoformat()


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}"


_ABSENT: Mapping[type, str] = {QuotaLimitsPart: "not limited"}
_FIELDS: Mapping[tuple[type, str], _Field] = {
    (BandEntry, "max_wait_ms"): _Field(absent="default"),
    (KeyEntry, "expires_unix_s"): _Field("expires", "never", _expiry),
    (KeyEntry, "hmac_sha256"): _Field("secret", shown=Secret),
    (ModelEntry, "declared_in"): _Field("declared in", "nowhere"),
    (ModelEntry, "rollout"): _Field(absent="built-in"),
    (PoolEntry, "context_window_tokens"): _Field("context window"),
    (PoolEntry, "dedicated_to"): _Field("dedicated to"),
    (PoolEntry, "model"): _Field(absent="its own"),
    (PoolEntry, "spot"): _Field("spot capacity"),
    (PoolEntry, "max_adapters"): _Field("adapters in an engine", "not set"),
    (PoolEntry, "max_lora_rank"): _Field("largest rank", "not set"),
    (PoolEntry, "role"): _Field(absent="answers"),
    (PoolEntry, "kv_bytes_per_token"): _Field("KV bytes per token", "not set"),
    (PoolEntry, "kv_transfer_bytes_per_s"): _Field("KV transfer bytes/s", "not set", _rate),
    (PoolEntry, "kv_host_bytes"): _Field("KV bytes in host memory", "none"),
    (PoolEntry, "kv_reload_bytes_per_s"): _Field("KV reload bytes/s", "learnt", _rate),
    (QuotaLimitsPart, "token_burst_seconds"): _Field(absent="default"),
    (RolloutEntry, "false_alarm_ratio"): _Field("falseAlarmRate", shown=lambda ratio: f"{ratio * 100:g}%"),
    (RoutingEntry, "hedge_after_s"): _Field("retry.hedgeAfter", "never"),
    (RoutingEntry, "prefill_give_up_after_s"): _Field("prefill.giveUpAfter"),
    (RoutingEntry, "prefill_min_prompt_tokens"): _Field("prefill.minPromptTokens"),
    (RoutingEntry, "prefix_source"): _Field("prefix.source"),
    (RoutingEntry, "retry_budget_ratio"): _Field("retry.budget"),
    (RoutingEntry, "retry_max_attempts"): _Field("retry.maxAttempts"),
    (RoutingEntry, "session_ttl_s"): _Field("session.ttl"),
    (RoutingEntry, "spread_above_utilization_ratio"): _Field("spreadAbove.utilization"),
    (RoutingEntry, "unknown_fields"): _Field("unknownFields"),
    (TenantEntry, "pools"): _Field("isolation.pools"),
}
_TOGETHER: Mapping[type, Mapping[tuple[str, ...], _Describe]] = {
    AdmissionEntry: {("bands",): _bands},
    AutoscalingEntry: {("min_replicas", "max_replicas"): _replicas},
    KeyEntry: {("limits",): lambda key: _facts(key.limits or QuotaLimitsPart())},
    ModelEntry: {("channels",): _channels},
    PoolEntry: {("min_replicas", "max_replicas"): _replicas},
    QuotaEntry: {("limits",): lambda quota: _facts(quota.limits)},
    RolloutEntry: {("stages",): _stages},
    RoutingEntry: {
        ("fallback",): lambda routing: {"fallback": frozenset(map(_fallback, routing.fallback))},
        ("cascade",): lambda routing: {"cascade": frozenset(map(_cascade, routing.cascade))},
        ("classifier",): lambda routing: {"classifier": frozenset(_classifier(routing.classifier))},
        ("placement",): _placement,
    },
    VersionEntry: {("digest", "engine_name"): lambda version: {"artifact": version.digest[:_DIGEST_CHARS]}},
}
