"""A document's head (`apiVersion`, `kind`): which kind it asks for, or why it gets none.

Three outcomes, since a folder may hold more than shoal's own: one of our kinds; somebody else's, passed over; or
something meant for us and misspelt, which must never be passed over in silence.
"""

from dataclasses import dataclass

from functions.api.kinds import inference_service
from functions.api.kinds.base import API_VERSION
from functions.api.kinds.catalogue import KINDS, LATER_KINDS, AnyObject
from functions.api.problems import Problem, near_miss, path_text, shown
from functions.api.yaml_tree import Node


@dataclass(frozen=True, slots=True)
class Ours:
    kind: type[AnyObject]


@dataclass(frozen=True, slots=True)
class PassedOver:
    reason: Problem


@dataclass(frozen=True, slots=True)
class Wrong:
    problem: Problem


def read_head(document: Node) -> Ours | PassedOver | Wrong:
    if not isinstance(document.value, dict):
        return Wrong(_at(document, [], f"found {shown(document.plain())}; allowed: an object with apiVersion and kind"))
    if not {"apiVersion", "kind"} & document.value.keys():
        return PassedOver(_at(document, [], "no apiVersion and no kind: not an object"))
    texts: list[str] = []
    for key in ("apiVersion", "kind"):
        node = document.child(key)
        if node is None:
            return Wrong(_at(document, [key], "is required, and not there"))
        if not isinstance(node.value, str):
            return Wrong(_at(document, [key], f"found {shown(node.plain())}; allowed: text"))
        texts.append(node.value)
    version, kind = texts
    model = KINDS.get((version, kind))
    return Ours(model) if model is not None else _unknown(document, version, kind)


def _unknown(document: Node, version: str, kind: str) -> PassedOver | Wrong:
    ours = [name for api, name in KINDS if api == API_VERSION]
    for_us = version == API_VERSION or near_miss(version, [API_VERSION]) != ""
    if for_us and kind in LATER_KINDS:
        message = f"{kind} is not supported yet by this version of shoal; supported: {', '.join(ours)}"
        return Wrong(_at(document, ["kind"], message))
    if version == API_VERSION:
        message = f"found {shown(kind)}; allowed: {', '.join(ours)}{near_miss(kind, ours)}"
        return Wrong(_at(document, ["kind"], message))
    if for_us:
        return Wrong(_at(document, ["apiVersion"], f"found {shown(version)}; allowed: {API_VERSION}"))
    if kind == "InferenceService":
        message = f"found {shown(version)}; allowed for {kind}: {inference_service.API_VERSION}"
        return Wrong(_at(document, ["apiVersion"], message))
    return PassedOver(_at(document, [], f"{version} {kind} is not one of shoal's kinds"))


def _at(document: Node, path: list[str], message: str) -> Problem:
    return Problem(document.locate(path), path_text(path), message)
