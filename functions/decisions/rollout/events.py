"""Events of a rollout: one type each, named by a past participle, used in messages and in storage.

Example in JSON: `{"is":"breached","reason":"error_rate > 2%: …"}`. Neighbours: `lifecycle` applies them, `codec`
reads and writes them.
"""

from typing import Annotated

import msgspec

Words = Annotated[str, msgspec.Meta(max_length=2000)]
Actor = Annotated[str, msgspec.Meta(max_length=200)]


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="is"):
    """An event of a rollout."""


class VersionLoaded(Event, frozen=True, tag="loaded"):
    """The new version is loaded on all replicas that have the old one."""


class StagePassed(Event, frozen=True, tag="stage_passed"):
    """The stage lasted its duration, with enough evidence and no breach."""


class Breached(Event, frozen=True, tag="breached"):
    """A halt condition of the stage is proven."""

    reason: Words


class LoadFailed(Event, frozen=True, tag="load_failed"):
    reason: Words


class Paused(Event, frozen=True, tag="paused"):
    by: Actor


class Resumed(Event, frozen=True, tag="resumed"):
    by: Actor


class Promoted(Event, frozen=True, tag="promoted"):
    """A user requested all traffic for the new version."""

    by: Actor


class RolledBack(Event, frozen=True, tag="rolled_back"):
    by: Actor
    reason: Words = ""


class Superseded(Event, frozen=True, tag="superseded"):
    """The channel has another target now."""

    by_rollout: Annotated[str, msgspec.Meta(max_length=64)] = ""  # empty: a flip without a rollout


class Withdrawn(Event, frozen=True, tag="withdrawn"):
    """The declaration of this target was withdrawn."""

    reason: Words = ""


AnyEvent = (
    VersionLoaded
    | StagePassed
    | Breached
    | LoadFailed
    | Paused
    | Resumed
    | Promoted
    | RolledBack
    | Superseded
    | Withdrawn
)
