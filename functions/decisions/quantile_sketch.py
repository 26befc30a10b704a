"""Quantile sketch of durations in a few hundred counters: within 1 %, mergeable, bounded. Pure.

Buckets grow by the factor G = 1.01 / 0.99, so that a bucket's middle is within 1 % of everything in it:

    bucket of v = ceil(ln v / ln G)             it holds what is above G^(i-1) and up to G^i
    value of it = 2 G^i / (G + 1)

Worked example (test_worked_example_of_the_prologue): 100 ms falls into ceil(4.6052 / 0.0200) = 231, which holds 99.50
to 101.51 ms and reads as 100.49 ms.
From 0.01 ms to an hour that makes 986 buckets at most; what is below or above counts in the first or the last.

Laws: merging is adding, in any order (test_merging_is_adding); a comparison with a threshold is asked on the safe side,
`count_above` counts only what is above for certain, `count_up_to` only what is not (test_counts_err_on_the_safe_side).
Source: DDSketch (Masson, Rim, Lee, VLDB 2019), with a fixed range in place of collapsing buckets.
Neighbours: `rollout.evidence` holds three of them for each group; `rollout.sequential_test` asks them.
"""

from collections.abc import Mapping
from math import ceil, log

RELATIVE_ERROR = 0.01
GROWTH = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
LEAST_MS = 0.01
MOST_MS = 3_600_000.0

_LOG_GROWTH = log(GROWTH)
FIRST_BUCKET = ceil(log(LEAST_MS) / _LOG_GROWTH)
LAST_BUCKET = ceil(log(MOST_MS) / _LOG_GROWTH)
MAX_BUCKETS = LAST_BUCKET - FIRST_BUCKET + 1


def bucket_of(value_ms: float) -> int:
    """Between FIRST_BUCKET and LAST_BUCKET; what is no number at all counts as the longest."""
    if value_ms <= LEAST_MS:
        return FIRST_BUCKET
    if not value_ms < MOST_MS:
        return LAST_BUCKET
    return ceil(log(value_ms) / _LOG_GROWTH)


def upper_edge_ms(bucket: int) -> float:
    """Nothing in the bucket is above this, unless it is the last one."""
    return GROWTH**bucket


class QuantileSketch:
    """Owned by whoever adds to it."""

    __slots__ = ("_buckets", "count")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0

    @classmethod
    def of(cls, buckets: Mapping[int, int]) -> "QuantileSketch":
        """From what `buckets` said; ValueError where that is none of ours."""
        sketch = cls()
        for bucket, count in buckets.items():
            if not FIRST_BUCKET <= bucket <= LAST_BUCKET or count < 1:
                raise ValueError(f"bucket {bucket} with {count}; allowed: {FIRST_BUCKET} to {LAST_BUCKET}, 1 or more")
            sketch._buckets[bucket] = count
            sketch.count += count
        return sketch

    def buckets(self) -> dict[int, int]:
        """The counts of the buckets that hold something, in order."""
        return dict(sorted(self._buckets.items()))

    def add(self, value_ms: float, times: int = 1) -> None:
        self.add_to(bucket_of(value_ms), times)

    def add_to(self, bucket: int, times: int) -> None:
        """So many values of a bucket that is known."""
        self._buckets[bucket] = self._buckets.get(bucket, 0) + times
        self.count += times

    def merge(self, other: "QuantileSketch") -> None:
        for bucket, count in other._buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self.count += other.count

    def quantile(self, q: float) -> float | None:
        """Milliseconds, within 1 %: the value of rank ceil(q x count). None where nothing was added."""
        if self.count == 0:
            return None
        wanted, seen = max(1, ceil(q * self.count)), 0
        for bucket, count in sorted(self._buckets.items()):
            seen += count
            if seen >= wanted:
                return 2 * upper_edge_ms(bucket) / (GROWTH + 1)
        raise AssertionError("the counts do not add up")

    def count_above(self, value_ms: float) -> int:
        """How many are above it for certain: the buckets beyond its own."""
        own = bucket_of(value_ms)
        return sum(count for bucket, count in self._buckets.items() if bucket > own)

    def count_up_to(self, value_ms: float) -> int:
        """How many are at most that for certain: the buckets whose upper edge is not above it."""
        own = bucket_of(value_ms)
        own_counts = own < LAST_BUCKET and upper_edge_ms(own) <= value_ms * (1 + 1e-9)
        return sum(count for bucket, count in self._buckets.items() if bucket < own or (bucket == own and own_counts))
