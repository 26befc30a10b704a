"""Policy of a pool: the one whose pattern fits it best, or the built-in default.

A pattern is a pool's exact name, or a prefix followed by `*`. An exact name beats any prefix, and a longer prefix beats
a shorter one. Between equal patterns, the policy whose name sorts first wins.
Worked example (test_the_most_specific_pattern_wins): for the pool `llama-8b`, `llama-8b` goes before `llama-*`, which
goes before `*`.
"""

from collections.abc import Iterable
from typing import Protocol, TypeVar

from functions.api.ids import PoolName
from functions.api.snapshot import AdmissionEntry, BandEntry, PoolEntry, RolloutEntry, RoutingEntry, StageEntry

BUILT_IN = "built-in"  # name of the default entries

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
    """Return the policy whose pattern fits the pool best, or `default` if none fits; of equals, the first by name."""
    best, best_rank = default, -1
    for policy in sorted(policies, key=lambda policy: policy.name):
        rank = max((_rank(pattern, pool) for pattern in policy.pools), default=-1)
        if rank > best_rank:
            best, best_rank = policy, rank
    return best


def policy_for_pool(policies: Iterable[Policy], pool: PoolEntry, default: Policy) -> Policy:
    """Return the policy of a pool, which may be one of several of its model: a policy that names the pool by more than
    `*`, otherwise the model's policy, otherwise `default`."""
    policies = tuple(policies)
    own = most_specific(policies, pool.name, default)
    if not pool.model or any(_rank(pattern, pool.name) > 0 for pattern in own.pools):
        return own
    return most_specific(policies, PoolName(pool.model), default)


def _rank(pattern: str, pool: PoolName) -> int:
    """Return how specifically the pattern fits the pool (the length of its prefix, most for the exact name); negative
    if it does not fit."""
    if pattern == pool:
        return _EXACT
    if pattern.endswith("*") and pool.startswith(pattern[:-1]):
        return len(pattern) - 1
    return -1
