"""Findings of `shoal doctor`, and accessors for object bodies that the checks use.

ok        as required
warn      works, with a weakness: no second zone, plain HTTP, image tags that may move
fail      an installation does not work, or is not protected
unknown   the credentials may not read it, or the cluster does not show it
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from functions.cli.cluster.access import Body, ClusterChoice
from functions.cli.cluster.facts import ClusterFacts, Items
from functions.controller.kubernetes import objects

Level = Literal["ok", "warn", "fail", "unknown"]


@dataclass(frozen=True, slots=True)
class DoctorFinding:
    check: str
    level: Level
    words: str
    mend: str = ""


Check = Callable[[ClusterFacts, ClusterChoice], Iterator[DoctorFinding]]


def unreadable(check: str, what: str) -> DoctorFinding:
    return DoctorFinding(
        check, "unknown", f"these credentials may not read {what}", "run this as an administrator of the cluster"
    )


def is_installed(facts: ClusterFacts, choice: ClusterChoice) -> bool:
    """Return True if a part of the overlay or the system namespace exists."""
    return bool(facts.services or facts.deployments) or choice.system in names_of(facts.namespaces or ())


def condition(body: Body, type_: str) -> str | None:
    found = objects.condition(body, type_)
    return str(found.get("status")) if found is not None else None


def first_reason(body: Body) -> str:
    """Return reason and message of `Ready` if it is False, else of another condition that is False; empty if none
    is."""
    conditions = [each for each in objects.list_at(body, "status", "conditions") if each.get("status") == "False"]
    conditions.sort(key=lambda each: each.get("type") != "Ready")
    if not conditions:
        return ""
    first = conditions[0]
    return ": ".join(filter(None, (first.get("reason"), str(first.get("message", ""))[:300])))


def name_of(body: Body) -> str:
    return str(body["metadata"]["name"])


def namespace_of(body: Body) -> str:
    return str(body["metadata"].get("namespace", ""))


def labels_of(body: Body) -> Mapping[str, str]:
    labels: Mapping[str, str] = body["metadata"].get("labels") or {}
    return labels


def names_of(items: Items) -> set[str]:
    return {name_of(each) for each in items}
