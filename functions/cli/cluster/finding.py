"""A finding of `shoal doctor`, and what of an object's body its checks look at.

ok        as it should be
warn      works, and something will be missed: a zone's loss, plain HTTP, policies that nobody enforces
fail      an installation does not work like this
unknown   these credentials may not read it, or nothing in a cluster says so
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from functions.cli.cluster.access import Body, ClusterChoice
from functions.cli.cluster.facts import ClusterFacts, Items
from functions.controller.kubernetes import objects

Level = Literal["ok", "warn", "fail", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    level: Level
    words: str
    mend: str = ""


Check = Callable[[ClusterFacts, ClusterChoice], Iterator[Finding]]


def unreadable(check: str, what: str) -> Finding:
    return Finding(check, "unknown", f"these credentials may not read {what}", "call this as a cluster's administrator")


def is_installed(facts: ClusterFacts, choice: ClusterChoice) -> bool:
    """Something of the overlay is there, or the namespaces are."""
    return bool(facts.services or facts.deployments) or choice.system in names_of(facts.namespaces or ())


def condition(body: Body, type_: str) -> str | None:
    """The status of the condition of that type."""
    found = objects.condition(body, type_)
    return str(found.get("status")) if found is not None else None


def first_reason(body: Body) -> str:
    """Of `Ready` where it is False, else of any condition that is."""
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
