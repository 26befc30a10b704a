"""Quantile sketch of durations: within 1 %, mergeable, bounded to a few hundred counters. Pure.

Buckets grow by the factor G = 1.01 / 0.99, so that a bucket's middle is within 1 % of every value in it:

    bucket of v = ceil(ln v / ln G)             holds values above G^(i-1) and up to G^i
    value of it = 2 G^i / (G + 1)

Worked example (test_worked_example_of_the_prologue): 100 ms falls into ceil(4.6052 / 0.0200) = 231, which holds 99.50
to 101.51 ms and reads as 100.49 ms.
The range from 0.01 ms to an hour needs at most 986 buckets. Values outside count in the first or the last bucket.

Laws: merging is adding, in any order (test_merge_equals_adding_all_values). Comparisons with a threshold are
conservative: `count_above` counts only values that are certainly above, `count_up_to` only values that are certainly
not above (test_counts_are_conservative).
Source: DDSketch (Masson, Rim, Lee, VLDB 2019), with a fixed range in place of collapsing buckets.
Neighbours: `rollout.evidence` holds three sketches for each group; `rollout.sequential_test` reads them.
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
    """Return the bucket of a duration in milliseconds, between FIRST_BUCKET and LAST_BUCKET. NaN counts as the
    longest."""
    if value_ms <= LEAST_MS:
        return FIRST_BUCKET
    if not value_ms < MOST_MS:
        return LAST_BUCKET
    return ceil(log(value_ms) / _LOG_GROWTH)


def upper_edge_ms(bucket: int) -> float:
    """Return the upper bound in milliseconds of the values in the bucket. It does not hold for the last bucket, which
    has none."""
    return GROWTH**bucket


class QuantileSketch:
    """Counts of durations by bucket. Only its owner may add to it."""

    __slots__ = ("_buckets", "count")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0

    @classmethod
    def from_buckets(cls, buckets: Mapping[int, int]) -> "QuantileSketch":
        """Rebuild a sketch from the result of `buckets`. Raise ValueError for a bucket or count out of range."""
        sketch = cls()
        for bucket, count in buckets.items():
            if not FIRST_BUCKET <= bucket <= LAST_BUCKET or count < 1:
                raise ValueError(f"bucket {bucket} with {count}; allowed: {FIRST_BUCKET} to {LAST_BUCKET}, 1 or more")
            sketch._buckets[bucket] = count
            sketch.count += count
        return sketch

    def buckets(self) -> dict[int, int]:
        """Return the counts of the non-empty buckets, by bucket, in ascending order."""
        return dict(sorted(self._buckets.items()))

    def add(self, value_ms: float, times: int = 1) -> None:
        self.add_to(bucket_of(value_ms), times)

    def add_to(self, bucket: int, times: int) -> None:
        """Add `times` values to a known bucket."""
        self._buckets[bucket] = self._buckets.get(bucket, 0) + times
        self.count += times

    def merge(self, other: "QuantileSketch") -> None:
        for bucket, count in other._buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self.count += other.count

    def quantile(self, q: float) -> float | None:
        """Return the value of rank ceil(q x count) in milliseconds, within 1 %, or None if the sketch is empty."""
        if self.count == 0:
            return None
        wanted, seen = max(1, ceil(q * self.count)), 0
        for bucket, count in sorted(self._buckets.items()):
            seen += count
            if seen >= wanted:
                return 2 * upper_edge_ms(bucket) / (GROWTH + 1)
        raise AssertionError("the counts do not add up")

    def count_above(self, value_ms: float) -> int:
        """Return how many values are certainly above `value_ms`: those in later buckets than its own."""
        own = bucket_of(value_ms)
        return sum(count for bucket, count in self._buckets.items() if bucket > own)

    def count_up_to(self, value_ms: float) -> int:
        """Return how many values are certainly not above: those in buckets whose upper edge is at most `value_ms`."""
        own = bucket_of(value_ms)
        own_counts = own < LAST_BUCKET and upper_edge_ms(own) <= value_ms * (1 + 1e-9)
        return sum(count for bucket, count in self._buckets.items() if bucket < own or (bucket == own and own_counts))
