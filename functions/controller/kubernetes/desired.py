"""Desired objects of a cluster: values that `render` makes and `applier` brings about.

A body is what we own and nothing else: no status, no resourceVersion, no field that somebody else sets. Waves are
applied in ascending order, each when the ones before it are healthy: budgets first, since they only protect, then
services by the number that their YAML gives them.
"""

from dataclasses import dataclass

from functions.controller.kubernetes.objects import Body, Kind, ObjectRef, ref_of

BUDGETS_WAVE = -1


@dataclass(frozen=True, slots=True)
class Autoscaled:
    """The number of replicas is the autoscaler's; `seed` is where it begins: what the service says itself.

    The loader has checked that the policy's bounds hold it."""

    seed: int


@dataclass(frozen=True, slots=True)
class DesiredObject:
    body: Body
    wave: int
    source: str  # where it was declared: `inferenceservices/a.yaml:12`
    keep: bool = False  # stays on the cluster when it is no longer desired
    autoscaled: Autoscaled | None = None  # then the body has no minReplicas

    @property
    def ref(self) -> ObjectRef:
        return ref_of(self.body)


@dataclass(frozen=True, slots=True)
class Desired:
    """`kinds` is the scope: objects of other kinds are neither applied nor pruned, whatever the inventory says."""

    revision: str
    kinds: tuple[Kind, ...]
    objects: tuple[DesiredObject, ...]  # in the order of application


def in_order(objects: "list[DesiredObject]") -> tuple[DesiredObject, ...]:
    """By wave, then by name, whatever order the files had."""
    return tuple(sorted(objects, key=lambda each: (each.wave, each.ref)))
