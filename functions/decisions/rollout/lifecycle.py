"""Lifecycle of a rollout: its states, and the effect of each event. Pure functions.

            VersionLoaded               StagePassed (the last one)
    loading ─────────► running ───────────────────────────────────► completed
       ▲  │  ▲          │ ▲  │ Breached, Withdrawn, RolledBack
       │  │  └──┐ Paused│ │  └──────────────► rolled_back ──┐ Resumed: another attempt
       │  │     │       ▼ │ Resumed                         │
       │  └───► paused ───┘                                 │
       └────────────────────────────────────────────────────┘      each but completed ── Superseded ──► superseded

A paused rollout does not advance; its share of traffic stays, and its conditions still halt it. Resuming continues in
the former state: `loaded` is True if the new version was loaded before. A rolled-back rollout stays so while its
target is declared. After that it is superseded, and declaring the same target again starts another rollout. A policy
with one stage completes with VersionLoaded.

Laws (tests/decisions/rollout/test_rollout.py): `TABLE` has a line for every state and event; an illegal event raises
IllegalTransition and changes nothing; stages only grow within an attempt; completed and superseded are final; the
same events make the same rollout. Neighbours: `evaluation` decides which event is due, `steering` derives the
gateways' view; only the registry applies events, in one transaction.
"""

import base64
import hashlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec.structs import replace

from functions.api.ids import Digest, ModelId, RolloutId
from functions.api.snapshot import RolloutEntry, StageEntry
from functions.api.snapshot_entries import AnyDigest, AnyModelId, AnyRolloutId, Name
from functions.decisions.rollout.events import (
    AnyEvent,
    Breached,
    LoadFailed,
    Paused,
    Promoted,
    Resumed,
    RolledBack,
    StagePassed,
    Superseded,
    VersionLoaded,
    Withdrawn,
    Words,
)

__all__ = [
    "ACTIVE",
    "EVENTS",
    "MAX_ATTEMPTS",
    "MAX_STAGES",
    "TABLE",
    "AnyEvent",
    "Breached",
    "IllegalTransition",
    "LoadFailed",
    "Origin",
    "Paused",
    "Promoted",
    "Resumed",
    "RolledBack",
    "Rollout",
    "RolloutSpec",
    "StagePassed",
    "State",
    "Superseded",
    "VersionLoaded",
    "Withdrawn",
    "id_of",
    "new_rollout",
    "rollout_id",
    "transition",
]

State = Literal["loading", "running", "paused", "completed", "rolled_back", "superseded"]
Origin = Literal["git", "api"]

ACTIVE: frozenset[State] = frozenset({"loading", "running", "paused"})
MAX_STAGES = 100  # the maximum of a RolloutPolicy
MAX_ATTEMPTS = 1000


class RolloutSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Goal of a rollout; constant for its whole life."""

    model: AnyModelId
    channel: Name
    pool: Name
    from_version: Name
    from_digest: AnyDigest
    from_artifact_uri: Annotated[str, msgspec.Meta(max_length=1000)]
    to_version: Name
    to_digest: AnyDigest
    to_artifact_uri: Annotated[str, msgspec.Meta(max_length=1000)]
    policy: RolloutEntry
    origin: Origin
    previous: Annotated[str, msgspec.Meta(max_length=64)] = ""  # previous rollout of the channel


class Rollout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    id: AnyRolloutId
    model: AnyModelId
    channel: Name
    pool: Name
    from_version: Name
    from_digest: AnyDigest
    from_artifact_uri: Annotated[str, msgspec.Meta(max_length=1000)]
    to_version: Name
    to_digest: AnyDigest
    to_artifact_uri: Annotated[str, msgspec.Meta(max_length=1000)]
    policy: RolloutEntry  # a copy: a changed policy does not affect running rollouts
    origin: Origin
    state: State = "loading"
    stage: Annotated[int, msgspec.Meta(ge=0, lt=MAX_STAGES)] = 0
    stage_began_unix_s: float = 0.0
    created_unix_s: float = 0.0
    reason: Words = ""  # reason of the state, for display
    attempt: Annotated[int, msgspec.Meta(ge=1, le=MAX_ATTEMPTS)] = 1
    lock_version: Annotated[int, msgspec.Meta(ge=0, le=10**9)] = 0  # grows by one with every event
    loaded: bool = False  # True if loaded in this attempt
    previous: Annotated[str, msgspec.Meta(max_length=64)] = ""

    @property
    def is_active(self) -> bool:
        return self.state in ACTIVE

    @property
    def is_of_base(self) -> bool:
        """True if the versions are weights of the pool's base, each on its own replicas."""
        return self.model == self.pool

    @property
    def trial(self) -> int:
        """Number of the current stage of this attempt, for which evidence is gathered. Stage 2 of attempt 3 is 202."""
        return (self.attempt - 1) * MAX_STAGES + self.stage

    @property
    def current(self) -> StageEntry:
        return self.policy.stages[self.stage]

    @property
    def percent(self) -> int:
        """Percentage of requests that gateways send to the new version now; 0 before it is loaded and after a rollback,
        100 once completed."""
        if self.state == "completed":
            return 100
        return self.current.percent if self.loaded and self.state in {"running", "paused"} else 0


class IllegalTransition(Exception):
    """The rollout's state does not allow the event; the message names the state."""


def rollout_id(model: ModelId, channel: str, from_digest: Digest, to_digest: Digest, previous_id: str) -> RolloutId:
    """Return an id that depends only on the step and its start: two controllers create the same row."""
    text = "\n".join((model, channel, from_digest, to_digest, previous_id))
    digest = hashlib.blake2b(text.encode(), digest_size=10).digest()
    return RolloutId("ro-" + base64.b32encode(digest).decode().lower())


def id_of(spec: RolloutSpec) -> RolloutId:
    return rollout_id(spec.model, spec.channel, spec.from_digest, spec.to_digest, spec.previous)


def new_rollout(spec: RolloutSpec, now_unix_s: float) -> Rollout:
    """Return a new rollout to this goal, in state `loading`, that begins now."""
    fields = {name: getattr(spec, name) for name in spec.__struct_fields__}
    return Rollout(
        id=id_of(spec), created_unix_s=now_unix_s, stage_began_unix_s=now_unix_s, reason="is being loaded", **fields
    )


def transition(rollout: Rollout, event: AnyEvent, now_unix_s: float) -> Rollout:
    """Return the rollout after the event, with the next lock version. IllegalTransition if `TABLE` does not allow
    it."""
    step = TABLE[rollout.state, type(event)]
    if step is None:
        raise IllegalTransition(f"the rollout is {rollout.state.replace('_', ' ')}: {_CANNOT[type(event)]}")
    return replace(step(rollout, event, now_unix_s), lock_version=rollout.lock_version + 1)


Step = Callable[[Rollout, Any, float], Rollout]


def _loaded(rollout: Rollout, _: VersionLoaded, now_unix_s: float) -> Rollout:
    if len(rollout.policy.stages) == 1:
        return _completed(rollout, "is loaded; its policy has one stage")
    return replace(rollout, state="running", loaded=True, stage_began_unix_s=now_unix_s, reason="")


def _stage_passed(rollout: Rollout, _: StagePassed, now_unix_s: float) -> Rollout:
    """Return the rollout at its next stage. The last stage is all traffic, without a control to compare, so reaching it
    completes the rollout."""
    if rollout.stage + 2 >= len(rollout.policy.stages):
        return _completed(rollout, "every stage passed")
    return replace(rollout, stage=rollout.stage + 1, stage_began_unix_s=now_unix_s, reason="")


def _taken_back(rollout: Rollout, event: Breached | LoadFailed | Withdrawn, _: float) -> Rollout:
    return replace(rollout, state="rolled_back", reason=event.reason)


def _breached_while_paused(rollout: Rollout, event: Breached, now_unix_s: float) -> Rollout:
    if not rollout.loaded:
        raise IllegalTransition("the rollout is paused before its new version was loaded: it serves no requests")
    return _taken_back(rollout, event, now_unix_s)


def _rolled_back(rollout: Rollout, event: RolledBack, _: float) -> Rollout:
    why = f": {event.reason}" if event.reason else ""
    return replace(rollout, state="rolled_back", reason=f"rolled back by {event.by}{why}")


def _paused(rollout: Rollout, event: Paused, _: float) -> Rollout:
    return replace(rollout, state="paused", reason=f"paused by {event.by}")


def _resumed(rollout: Rollout, event: Resumed, now_unix_s: float) -> Rollout:
    state: State = "running" if rollout.loaded else "loading"
    return replace(rollout, state=state, stage_began_unix_s=now_unix_s, reason=f"resumed by {event.by}")


def _tried_again(rollout: Rollout, event: Resumed, now_unix_s: float) -> Rollout:
    if rollout.attempt >= MAX_ATTEMPTS:
        raise IllegalTransition(f"the rollout was tried {rollout.attempt} times; declare another version")
    return replace(
        rollout,
        state="loading",
        stage=0,
        stage_began_unix_s=now_unix_s,
        attempt=rollout.attempt + 1,
        loaded=False,
        reason=f"tried again by {event.by}",
    )


def _promoted(rollout: Rollout, event: Promoted, _: float) -> Rollout:
    if not rollout.loaded:
        raise IllegalTransition("the new version is not loaded yet: no replica could serve it")
    return _completed(rollout, f"promoted by {event.by}")


def _superseded(rollout: Rollout, event: Superseded, _: float) -> Rollout:
    by = f"by {event.by_rollout}" if event.by_rollout else "by another target"
    return replace(rollout, state="superseded", reason=f"superseded {by}")


def _given_up(rollout: Rollout, _: Superseded, __: float) -> Rollout:
    """Return a rolled-back rollout as superseded. Its reason stays, since users need to see it."""
    return replace(rollout, state="superseded")


def _completed(rollout: Rollout, reason: str) -> Rollout:
    return replace(rollout, state="completed", loaded=True, stage=len(rollout.policy.stages) - 1, reason=reason)


_LINES: Mapping[State, Mapping[type[AnyEvent], Step]] = {
    "loading": {
        VersionLoaded: _loaded,
        LoadFailed: _taken_back,
        Paused: _paused,
        Promoted: _promoted,
        RolledBack: _rolled_back,
        Superseded: _superseded,
        Withdrawn: _taken_back,
    },
    "running": {
        StagePassed: _stage_passed,
        Breached: _taken_back,
        Paused: _paused,
        Promoted: _promoted,
        RolledBack: _rolled_back,
        Superseded: _superseded,
        Withdrawn: _taken_back,
    },
    "paused": {
        Breached: _breached_while_paused,
        Resumed: _resumed,
        Promoted: _promoted,
        RolledBack: _rolled_back,
        Superseded: _superseded,
        Withdrawn: _taken_back,
    },
    "rolled_back": {Resumed: _tried_again, Superseded: _given_up},
    "completed": {},
    "superseded": {},
}

EVENTS: tuple[type[AnyEvent], ...] = get_args(AnyEvent)

# Transition for every state and event; None if the event is not allowed.
TABLE: Mapping[tuple[State, type[AnyEvent]], Step | None] = MappingProxyType(
    {(state, event): _LINES[state].get(event) for state in get_args(State) for event in EVENTS}
)

_CANNOT: Mapping[type[AnyEvent], str] = MappingProxyType(
    {
        VersionLoaded: "nothing is being loaded",
        StagePassed: "no stage of it can pass",
        Breached: "it sends no requests to the new version",
        LoadFailed: "nothing is being loaded",
        Paused: "it cannot be paused",
        Resumed: "it cannot be resumed",
        Promoted: "it cannot be promoted",
        RolledBack: "it cannot be rolled back",
        Superseded: "it is over already",
        Withdrawn: "it is over already",
    }
)
