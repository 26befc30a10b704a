"""Patterns of pool names: no pool may have two policies of one kind that fit it equally well."""

from collections.abc import Iterable, Iterator

from functions.api.consistency.everything import Everything
from functions.api.declared import Declared
from functions.api.kinds.admission_policy import AdmissionPolicy
from functions.api.kinds.routing_policy import RoutingPolicy
from functions.api.problems import Problem, shown


def doubles(everything: Everything) -> Iterator[Problem]:
    yield from _doubles(everything.routing)
    yield from _doubles(everything.admission)


def best_match(pool: str, patterns: Iterable[str]) -> str | None:
    """The pattern that fits a pool best: its exact name, else the longest beginning; None where none fits.

    Of `*`, `llama-*` and `llama-3-8b`, the pool llama-3-8b has the last, llama-3-70b the second, bge-m3 the first.
    """
    fitting = [it for it in patterns if it == pool or (it.endswith("*") and pool.startswith(it[:-1]))]
    return max(fitting, key=lambda it: (it == pool, len(it)), default=None)


def _doubles(policies: Iterable[Declared[RoutingPolicy] | Declared[AdmissionPolicy]]) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for policy in policies:
        for index, pattern in enumerate(policy.value.spec.pools):
            if pattern in first:
                message = f"the pools {shown(pattern)} are already taken by {policy.value.kind} {first[pattern]}"
                yield policy.problem(["spec", "pools", index], message)
            else:
                first[pattern] = f"{policy.value.metadata.name} at {policy.source}"
