"""A document's head (`apiVersion`, `kind`): which kind it asks for, or why it gets none.

Three outcomes, since a folder may hold more than shoal's own: one of our kinds; somebody else's, passed over; or
something meant for us and misspelt, which must never be passed over in silence.
"""

from dataclasses import dataclass

from functions.api.kinds import inference_service
from functions.api.kinds.base import API_VERSION
from functions.api.kinds.catalogue import KINDS, AnyObject
from functions.api.problems import Problem, near_miss, shown
from functions.api.yaml_documents import Document, Written


@dataclass(frozen=True, slots=True)
class Ours:
    kind: type[AnyObject]


@dataclass(frozen=True, slots=True)
class PassedOver:
    reason: Problem


@dataclass(frozen=True, slots=True)
class Wrong:
    problem: Problem


def read_head(written: Written) -> Ours | PassedOver | Wrong:
    value, document = written.value, written.document
    if not isinstance(value, dict):
        return Wrong(document.problem([], f"found {shown(value)}; allowed: an object with apiVersion and kind"))
    if not {"apiVersion", "kind"} & value.keys():
        return PassedOver(Problem(document.place, "", "no apiVersion and no kind: not an object"))
    for key in ("apiVersion", "kind"):
        if key not in value:
            return Wrong(document.problem([key], "is required, and not there"))
        if not isinstance(value[key], str):
            return Wrong(document.problem([key], f"found {shown(value[key])}; allowed: text"))
    version, kind = value["apiVersion"], value["kind"]
    model = KINDS.get((version, kind))
    return Ours(model) if model is not None else _unknown(document, version, kind)


def _unknown(document: Document, version: str, kind: str) -> PassedOver | Wrong:
    ours = [name for api, name in KINDS if api == API_VERSION]
    if version == API_VERSION:
        message = f"found {shown(kind)}; allowed: {', '.join(ours)}{near_miss(kind, ours)}"
        return Wrong(document.problem(["kind"], message))
    if near_miss(version, [API_VERSION]):
        return Wrong(document.problem(["apiVersion"], f"found {shown(version)}; allowed: {API_VERSION}"))
    if kind == "InferenceService":
        message = f"found {shown(version)}; allowed for {kind}: {inference_service.API_VERSION}"
        return Wrong(document.problem(["apiVersion"], message))
    return PassedOver(Problem(document.place, "", f"{_head_text(version, kind)} is not one of shoal's kinds"))


def _head_text(version: str, kind: str) -> str:
    """`serving.kserve.io/v1alpha1 ServingRuntime`, in one line whatever the text holds."""
    return f"{shown(version)[1:-1]} {shown(kind)[1:-1]}"
