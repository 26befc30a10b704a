"""Which adapters an engine should hold now: wanted by the snapshot, loaded in the engine, and the steps between.

The law is the double buffer: a new version is loaded under its own name beside the old one; the old one is unloaded
only when nothing asks for it any more, in three stages after the snapshot stopped wanting it:

    unwanted --grace_s--> withdrawn (no longer advertised) --withdraw_s and idle--> unloaded

The grace covers gateways that have not swapped their snapshot yet; the withdrawal covers requests already routed
here. Never more than `max_adapters` are in the engine, those on their way out included: an engine over its host
cache reads adapters from disk inside its step, which stalls everyone. Who does not fit is left out with a reason,
never in silence: versions on the default channel come first, then other channels, then the rest, each by name.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from functions.api.ids import DEFAULT_CHANNEL, Digest, EngineName, PoolName
from functions.api.snapshot import ModelEntry, Snapshot
from functions.decisions.backoff import BackoffPolicy, delay_s

_REASONS_SHOWN = 4  # ten thousand adapters that do not fit are one sentence, not a megabyte


@dataclass(frozen=True, slots=True)
class AdapterPolicy:
    max_adapters: int = 8
    """The engine's --max-cpu-loras: what it holds in memory without reading the disk again."""
    grace_s: float = 30.0
    """How long a gateway may lag behind the snapshot: one long poll of 25 s, and room."""
    withdraw_s: float = 3.0
    """Three beats: every gateway has heard that the adapter is no longer advertised."""
    backoff: BackoffPolicy = field(default_factory=lambda: BackoffPolicy(base_s=1.0, cap_s=60.0))


@dataclass(frozen=True, slots=True)
class WantedAdapter:
    name: EngineName
    digest: Digest
    artifact_uri: str


@dataclass(frozen=True, slots=True)
class EngineAdapters:
    """What the engine has now, and what is on its way there."""

    loaded: frozenset[EngineName]
    busy: frozenset[EngineName] = frozenset()  # with requests running or waiting
    loading: frozenset[EngineName] = frozenset()  # being fetched or loaded


@dataclass(frozen=True, slots=True)
class Failure:
    """The last failed load of one adapter; it is tried again from `retry_at_s`."""

    count: int
    retry_at_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class AdapterState:
    """What outlives one plan. Times are monotonic seconds."""

    unwanted_since_s: Mapping[EngineName, float] = field(default_factory=dict)
    busy_s: Mapping[EngineName, float] = field(default_factory=dict)  # when it last ran or waited
    failures: Mapping[EngineName, Failure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    load: tuple[WantedAdapter, ...]
    unload: tuple[EngineName, ...]
    advertise: tuple[EngineName, ...]
    left_out: Mapping[EngineName, str]
    state: AdapterState

    @property
    def reason(self) -> str:
        """What is not as it should be, for people, failures first; empty when all is loaded."""
        ordered = sorted(self.left_out, key=lambda name: (name not in self.state.failures, name))
        shown = [f"{name}: {self.left_out[name]}" for name in ordered[:_REASONS_SHOWN]]
        more = len(ordered) - len(shown)
        return "; ".join([*shown, f"and {more} more"] if more else shown)


def wanted_in(snapshot: Snapshot, pool: PoolName) -> tuple[WantedAdapter, ...]:
    """Every adapter version of the pool, the most important first."""
    ranked = []
    for model in snapshot.models:
        if model.type != "lora" or model.pool != pool:
            continue
        for version in model.versions:
            wanted = WantedAdapter(version.engine_name, version.digest, version.artifact_uri)
            ranked.append((_rank(model, version.name), wanted.name, wanted))
    unique: dict[EngineName, WantedAdapter] = {}
    for _, name, wanted in sorted(ranked, key=lambda entry: entry[:2]):
        unique.setdefault(name, wanted)
    return tuple(unique.values())


def plan(
    wanted: tuple[WantedAdapter, ...], engine: EngineAdapters, state: AdapterState, now_s: float, policy: AdapterPolicy
) -> AdapterPlan:
    """The steps to take now, and the state to pass in next time."""
    fitting, surplus = wanted[: policy.max_adapters], wanted[policy.max_adapters :]
    state = _observe(state, {adapter.name for adapter in fitting}, engine, now_s)
    left_out = {adapter.name: f"over this replica's limit of {policy.max_adapters} adapters" for adapter in surplus}
    room = policy.max_adapters - len(engine.loaded | engine.loading)
    load: list[WantedAdapter] = []
    for adapter in fitting:
        if adapter.name in engine.loaded or adapter.name in engine.loading:
            continue
        failure = state.failures.get(adapter.name)
        if failure is not None:
            left_out[adapter.name] = f"{failure.reason} (failed {failure.count} times)"
        if failure is not None and now_s < failure.retry_at_s:
            continue
        if len(load) < room:
            load.append(adapter)
        elif failure is None:
            left_out[adapter.name] = "waits for an adapter that is being drained"
    leaving_s = {name: now_s - since_s for name, since_s in state.unwanted_since_s.items()}
    return AdapterPlan(
        load=tuple(load),
        unload=tuple(name for name in sorted(leaving_s) if _may_unload(name, engine, state, now_s, policy)),
        advertise=tuple(sorted(name for name in engine.loaded if leaving_s.get(name, 0.0) < policy.grace_s)),
        left_out=left_out,
        state=state,
    )


def failed(state: AdapterState, name: EngineName, reason: str, now_s: float, policy: AdapterPolicy) -> AdapterState:
    """The state after a load failed: the next try waits twice as long as the last."""
    count = state.failures[name].count + 1 if name in state.failures else 1
    failure = Failure(count=count, retry_at_s=now_s + delay_s(count, policy.backoff), reason=reason)
    return replace(state, failures={**state.failures, name: failure})


def _rank(model: ModelEntry, version: str) -> int:
    if model.channels.get(DEFAULT_CHANNEL) == version:
        return 0
    return 1 if version in model.channels.values() else 2


def _observe(state: AdapterState, wanted: Collection[EngineName], engine: EngineAdapters, now_s: float) -> AdapterState:
    unwanted = [name for name in engine.loaded if name not in wanted]
    last_busy_s = {name: state.busy_s[name] for name in unwanted if name in state.busy_s}
    return AdapterState(
        unwanted_since_s={name: state.unwanted_since_s.get(name, now_s) for name in unwanted},
        busy_s=last_busy_s | {name: now_s for name in unwanted if name in engine.busy},
        failures={
            name: state.failures[name] for name in state.failures if name in wanted and name not in engine.loaded
        },
    )


def _may_unload(
    name: EngineName, engine: EngineAdapters, state: AdapterState, now_s: float, policy: AdapterPolicy
) -> bool:
    unwanted_s = now_s - state.unwanted_since_s[name]
    quiet_s = now_s - state.busy_s.get(name, float("-inf"))
    return unwanted_s >= policy.grace_s + policy.withdraw_s and name not in engine.busy and quiet_s >= policy.withdraw_s
