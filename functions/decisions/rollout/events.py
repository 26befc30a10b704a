"""What happens to a rollout: one type for each event, in the past participle, as it travels and as it is kept.

`{"is":"breached","reason":"error_rate > 2%: …"}` is one of them on the wire.
Neighbours: `rollout` says what each of them does, `rollout_wire` reads and writes them.
"""

from typing import Annotated

import msgspec

Words = Annotated[str, msgspec.Meta(max_length=2000)]
Actor = Annotated[str, msgspec.Meta(max_length=200)]


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="is"):
    """Something that has happened."""


class Loaded(Event, frozen=True, tag="loaded"):
    """The new version is where the old one is."""


class StagePassed(Event, frozen=True, tag="stage_passed"):
    """It has lasted its time, on enough evidence, without a breach."""


class Breached(Event, frozen=True, tag="breached"):
    """A condition of the stage holds, beyond doubt."""

    reason: Words


class LoadFailed(Event, frozen=True, tag="load_failed"):
    reason: Words


class Paused(Event, frozen=True, tag="paused"):
    by: Actor


class Resumed(Event, frozen=True, tag="resumed"):
    by: Actor


class Promoted(Event, frozen=True, tag="promoted"):
    """Somebody wants all of it now."""

    by: Actor


class RolledBack(Event, frozen=True, tag="rolled_back"):
    by: Actor
    reason: Words = ""


class Superseded(Event, frozen=True, tag="superseded"):
    """The channel is to go somewhere else."""

    by_rollout: Annotated[str, msgspec.Meta(max_length=64)] = ""  # empty: a flip without a rollout


class Withdrawn(Event, frozen=True, tag="withdrawn"):
    """Whoever declared it has taken it back."""

    reason: Words = ""


AnyEvent = (
    Loaded | StagePassed | Breached | LoadFailed | Paused | Resumed | Promoted | RolledBack | Superseded | Withdrawn
)
