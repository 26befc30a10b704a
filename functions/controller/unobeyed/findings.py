"""Finding about a policy without effect: the object, the field, a one-word reason, and what to do.

A finding has no time, so that it stays equal for as long as it lasts. The condition (`lastTransitionTime`) and the
Event on the object have the time.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from functions.api.declared import Declared
from functions.api.problems import Problem
from functions.api.schema.crd import plural

INFERENCE_SERVICE, _PLURAL_OF_KSERVE = "InferenceService", "inferenceservices"


@dataclass(frozen=True, slots=True, order=True)
class Unobeyed:
    kind: str
    name: str
    reason: str  # one of a few CamelCase words: a condition's reason and a metric's label
    problem: Problem  # place and key path of the field; the message says what to do

    @property
    def key(self) -> str:
        """The object's key as used by the sources: `routingpolicies/default`."""
        plurals = _PLURAL_OF_KSERVE if self.kind == INFERENCE_SERVICE else plural(self.kind)
        return f"{plurals}/{self.name}"

    @property
    def warning(self) -> str:
        """Text for the file's author: `policies/routing.yaml:9:5: spec.prefix.source: … (PrefixCachingOff)`."""
        return f"{self.problem} ({self.reason})"

    def __str__(self) -> str:
        path = f"{self.problem.key_path}: " if self.problem.key_path else ""
        return f"{path}{self.problem.message}"


def unobeyed(declared: Declared[Any], path: Sequence[str | int], reason: str, message: str) -> Unobeyed:
    value = declared.value
    return Unobeyed(value.kind, value.metadata.name, reason, declared.problem(path, message))


def by_key(findings: Iterable[Unobeyed]) -> Mapping[str, tuple[Unobeyed, ...]]:
    """Return the sorted findings by the key of their object."""
    found: dict[str, tuple[Unobeyed, ...]] = {}
    for finding in sorted(findings):
        found[finding.key] = (*found.get(finding.key, ()), finding)
    return found


def objects_by_reason(findings: Iterable[Unobeyed]) -> Mapping[tuple[str, str], int]:
    """Return the number of objects by kind and reason; several findings of one reason on one object count once."""
    return Counter((kind, reason) for kind, reason, _ in {(each.kind, each.reason, each.name) for each in findings})
