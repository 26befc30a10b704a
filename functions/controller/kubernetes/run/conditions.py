"""Status conditions of custom resources: Ready, Reconciling, Stalled, as kstatus and `kubectl wait` read them.

    Ready=True                        the object as written is in the published snapshot
    Ready=Unknown, Reconciling=True   it will be; a temporary obstacle delays it
    Ready=False, Stalled=True         it cannot be published as written; the message says what to change
    Obeyed=False                      it is in force, and something else prevents its effect since the last transition
                                      (`functions.controller.unobeyed`). True once that is fixed; True for an
                                      AutoscalingPolicy while the autoscaler owns the number of replicas

Reconciling and Stalled exist only while they are true. Times change only with the status. An unchanged status is not
written (`None`), so that an idle fleet costs no write. Messages must not contain what changes by itself (an epoch, a
count of other objects), or every publication would write every object.

An object that was published before stays Ready while a later publication is delayed: the data plane has it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from functions.controller.kubernetes import objects
from functions.controller.unobeyed.findings import Unobeyed

MESSAGE_MAX_CHARS = 1024
_OURS = ("Ready", "Reconciling", "Stalled")
_FIELDS = ("stages", "wantedReplicas", "liveReplicas")  # a new leader leaves them unchanged until it knows better

ConditionStatus = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class StatusCondition:
    type: str
    status: ConditionStatus
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ObjectStatus:
    """Status of one generation of an object."""

    conditions: tuple[StatusCondition, ...]
    fields: Mapping[str, int | str] = field(default_factory=dict)  # status fields besides the conditions


@dataclass(frozen=True, slots=True)
class ScalingStatus:
    wanted: int  # replicas that should serve
    live: int  # replicas that serve
    contested: str = ""  # why the number is not written, and what to do


PUBLISHED = ObjectStatus(
    (StatusCondition("Ready", "True", "Published", "in force on every gateway that follows the registry"),)
)


def waiting_status(reason: str, message: str) -> ObjectStatus:
    """Return the status (Ready unknown, Reconciling) of an object that will be in force after a temporary obstacle."""
    text = _bounded(message)
    return ObjectStatus(
        (StatusCondition("Ready", "Unknown", reason, text), StatusCondition("Reconciling", "True", reason, text))
    )


def refused_status(problems: Iterable[str], *, stands_in: bool) -> ObjectStatus:
    """Return the status of an invalid object. `stands_in`: its last good version is in force."""
    meanwhile = "its last good version stays in force" if stands_in else "it is left out"
    reason = "InvalidKeepsLastGood" if stands_in else "Invalid"
    return _stalled(reason, f"{'; '.join(problems)} (until that is changed, {meanwhile})")


def changed_version_status(message: str) -> ObjectStatus:
    """Return the status of an object that would change the content of a served version. The served one stays."""
    return _stalled("VersionsDoNotChange", message)


def rolling_out_status(message: str) -> ObjectStatus:
    """Return the status of a published object with a rollout under way."""
    return waiting_status("RollingOut", message)


def with_scaling(object_status: ObjectStatus, scaling: ScalingStatus) -> ObjectStatus:
    """Return the status of an AutoscalingPolicy, with its replica counts and the Obeyed condition."""
    obeyed = StatusCondition("Obeyed", "True", "Scaled", "the autoscaler sets the number of replicas")
    if scaling.contested:
        obeyed = StatusCondition("Obeyed", "False", "ReplicasContested", _bounded(scaling.contested))
    fields = {"wantedReplicas": scaling.wanted, "liveReplicas": scaling.live}
    return replace(
        object_status, conditions=(*object_status.conditions, obeyed), fields={**object_status.fields, **fields}
    )


def with_findings(object_status: ObjectStatus, findings: Sequence[Unobeyed]) -> ObjectStatus:
    """Return the status of an object in force that is not obeyed: the first reason, and all messages."""
    text = "; ".join(dict.fromkeys(map(str, findings)))
    return _with_obeyed(object_status, StatusCondition("Obeyed", "False", findings[0].reason, _bounded(text)))


def with_obeyed_again(object_status: ObjectStatus) -> ObjectStatus:
    return _with_obeyed(
        object_status, StatusCondition("Obeyed", "True", "Obeyed", "the object takes full effect again")
    )


def _with_obeyed(object_status: ObjectStatus, condition: StatusCondition) -> ObjectStatus:
    others = [each for each in object_status.conditions if each.type != condition.type]
    return replace(object_status, conditions=(*others, condition))


def halted_status(message: str) -> ObjectStatus:
    """Return the status of an object whose channel was rolled back, until it changes or the rollout resumes."""
    return _stalled("RolloutHalted", message)


def deletion_waits_status(message: str) -> ObjectStatus:
    """Return the status of an object that waits for its deletion because others still reference it."""
    return ObjectStatus((StatusCondition("Ready", "True", "DeletionWaits", _bounded(message)),))


def status_of(
    object_status: ObjectStatus, generation: int, known: Mapping[str, Any], now: str
) -> dict[str, Any] | None:
    """Return the status to write, or None if `known` says the same. `now` is in Kubernetes' time format."""
    before = {str(each.get("type")): each for each in known.get("conditions") or [] if isinstance(each, Mapping)}
    ours = [
        _written(condition, generation, before.get(condition.type, {}), now) for condition in object_status.conditions
    ]
    said = {*_OURS, *(condition.type for condition in object_status.conditions)}
    others = [dict(each) for type_, each in before.items() if type_ not in said]
    fields = {name: known[name] for name in _FIELDS if name in known} | dict(object_status.fields)
    status = {"observedGeneration": generation, "conditions": [*ours, *others], **fields}
    return None if all(known.get(name) == value for name, value in status.items()) else status


def is_published(status: Mapping[str, Any], generation: int) -> bool:
    """Return True if this generation was in force when its status was written."""
    ready = objects.condition({"status": status}, "Ready") or {}
    return (
        status.get("observedGeneration") == generation
        and ready.get("status") == "True"
        and ready.get("observedGeneration") == generation
    )


def _stalled(reason: str, message: str) -> ObjectStatus:
    text = _bounded(message)
    return ObjectStatus(
        (StatusCondition("Ready", "False", reason, text), StatusCondition("Stalled", "True", reason, text))
    )


def _written(condition: StatusCondition, generation: int, before: Mapping[str, Any], now: str) -> dict[str, Any]:
    unchanged = before.get("status") == condition.status
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": before.get("lastTransitionTime", now) if unchanged else now,
        "observedGeneration": generation,
    }


def _bounded(text: str) -> str:
    return text if len(text) <= MESSAGE_MAX_CHARS else text[: MESSAGE_MAX_CHARS - 1] + "…"
