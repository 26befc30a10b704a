"""Policy of a pool: the one whose pattern fits it best, or the built-in default.

A pattern is a pool's exact name, or a beginning that ends in `*`. The exact name goes before any beginning, a longer
beginning before a shorter one; between equals, the policy whose name comes first.
Worked example (test_the_most_specific_pattern_wins): for the pool `llama-8b`, `llama-8b` goes before `llama-*`, which
goes before `*`.

Neighbours: `catalogue` asks once per pool and remembers; the gateway obeys what it is told.
"""

from collections.abc import Iterable
from typing import Protocol, TypeVar

from functions.api.ids import PoolName
from functions.api.snapshot import AdmissionEntry, BandEntry, PoolEntry, RolloutEntry, RoutingEntry, StageEntry

BUILT_IN = "built-in"  # the name of the entries that hold where none was written

DEFAULT_ROUTING = RoutingEntry(name=BUILT_IN, pools=("*",))
DEFAULT_ADMISSION = AdmissionEntry(
    name=BUILT_IN,
    pools=("*",),
    bands=(BandEntry("interactive", 0.6), BandEntry("near-real-time", 0.3), BandEntry("batch", 0.1)),
)

# A median shows within a hundred requests what a 99th percentile shows after thousands.
_EARLY = ("error_rate > 2%", "p50_latency > 1.5x", "p99_latency > 2x")
DEFAULT_ROLLOUT = RolloutEntry(
    name="default",
    stages=(
        StageEntry(1, 300.0, _EARLY),
        StageEntry(10, 900.0, _EARLY),
        StageEntry(50, 1800.0, ("error_rate > 1%", "p50_latency > 1.5x", "p99_ttft > 1.5x")),
        StageEntry(100),
    ),
    min_requests=50,
)


class _ForPools(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def pools(self) -> tuple[str, ...]: ...


Policy = TypeVar("Policy", bound=_ForPools)

_EXACT = 1_000_000  # above the length of any pattern


def most_specific(policies: Iterable[Policy], pool: PoolName, default: Policy) -> Policy:
    """The policy that the pool obeys."""
    best, best_rank = default, -1
    for policy in sorted(policies, key=lambda policy: policy.name):
        rank = max((_rank(pattern, pool) for pattern in policy.pools), default=-1)
        if rank > best_rank:
            best, best_rank = policy, rank
    return best


def obeyed(policies: Iterable[Policy], pool: PoolEntry, default: Policy) -> Policy:
    """The policy of one pool of several of a model: what names it, by more than `*`; else the model's."""
    policies = tuple(policies)
    own = most_specific(policies, pool.name, default)
    if not pool.model or any(_rank(pattern, pool.name) > 0 for pattern in own.pools):
        return own
    return most_specific(policies, PoolName(pool.model), default)


def _rank(pattern: str, pool: PoolName) -> int:
    """How well the pattern fits; below 0: not at all."""
    if pattern == pool:
        return _EXACT
    if pattern.endswith("*") and pool.startswith(pattern[:-1]):
        return len(pattern) - 1
    return -1
