"""A rollout as the registry tells of it, with the figures that are worth looking at. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from functions.cli.refused import Refused
from functions.decisions.rollout.evidence import Evidence, EvidenceWire, group_of
from functions.decisions.rollout.lifecycle import Rollout
from functions.decisions.rollout.report import Figures, figures_of

_FIELDS = frozenset(Rollout.__struct_fields__)
_NOTHING: dict[str, Any] = {"candidate": {}, "control": {}}


@dataclass(frozen=True, slots=True)
class Picture:
    rollout: Rollout
    figures: Figures
    heard_unix_s: float | None
    now_unix_s: float

    @property
    def in_stage_s(self) -> float:
        return max(0.0, self.now_unix_s - self.rollout.stage_began_unix_s)

    @property
    def heard_age_s(self) -> float | None:
        return None if self.heard_unix_s is None else max(0.0, self.now_unix_s - self.heard_unix_s)


def rollout_of(answer: Mapping[str, Any]) -> Rollout:
    """The rollout in an answer that may say more of it."""
    try:
        return msgspec.convert({name: value for name, value in answer.items() if name in _FIELDS}, Rollout)
    except msgspec.ValidationError as error:
        raise Refused(f"the registry tells of a rollout that this build does not understand: {error}") from error


def picture_of(answer: Mapping[str, Any], now_unix_s: float) -> Picture:
    """From the answer of GET /v1/rollouts/{id}."""
    rollout = rollout_of(answer)
    try:
        wire = msgspec.convert(answer.get("evidence") or _NOTHING, EvidenceWire, str_keys=True)
        evidence = Evidence(group_of(wire.candidate), group_of(wire.control), wire.heard_unix_s)
    except (msgspec.ValidationError, ValueError) as error:
        raise Refused(f"the registry tells of evidence that this build does not understand: {error}") from error
    return Picture(rollout, figures_of(rollout, evidence, now_unix_s), evidence.heard_unix_s, now_unix_s)
