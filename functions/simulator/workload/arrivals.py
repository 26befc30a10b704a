"""Arrival times of many senders in a window: each with its own burstiness, all in one sorted stream.

    gaps of a sender    gamma distributed, coefficient of variation cv: shape 1 / cv^2; cv 1 is Poisson
    its times           count + 1 gaps, added up and stretched over the window: exactly `count` fall into it

Stretching keeps a rate what it is said to be, however bursty the sender: drawn freely, a sender with cv 9 would be off
by cv^2 / 2 = 40 requests a window (test_a_bursty_sender_keeps_its_rate). How many come is the caller's to say:
`rounded` for a rate that was recorded, `drawn` for one that is a mean.

All of it is numpy over all senders at once, about 0.2 us a request. Neighbours: `servegen_day`, `synthetic`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LAST = 1.0 - 1e-9  # of a window; 1 is the next one's
_LEAST_GAP = 1e-300  # a gamma of small shape is 0 in floating point; not all of a sender's may be


class Arrivals(NamedTuple):
    """In order of time."""

    owners: Ints  # which sender, by index
    times: Floats  # shares of the window: 0 up to 1


def spread(counts: Ints, cvs: Floats, rng: np.random.Generator) -> Arrivals:
    """`counts` and `cvs` by sender."""
    senders = np.flatnonzero(counts > 0)
    rows = counts[senders] + 1
    if not len(senders):
        return Arrivals(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float64))
    ends = np.cumsum(rows)
    ordinals = np.repeat(np.arange(len(senders)), rows)
    gaps = rng.standard_gamma((1.0 / cvs[senders] ** 2)[ordinals]) + _LEAST_GAP
    gaps /= np.add.reduceat(gaps, ends - rows)[ordinals]
    times = np.clip(np.cumsum(gaps) - ordinals, 0.0, _LAST)
    inside = np.ones(len(times), dtype=bool)
    inside[ends - 1] = False  # the last gap of each reaches the end of the window
    times, owners = times[inside], senders[ordinals[inside]]
    order = np.argsort(times, kind="stable")
    return Arrivals(owners[order], times[order])


def rounded(expected: Floats, rng: np.random.Generator) -> Ints:
    """Whole counts whose mean is what is expected: 2.3 is 2 or, three times of ten, 3."""
    return np.floor(expected + rng.random(len(expected))).astype(np.int64)


def drawn(expected: Floats, cvs: Floats, rng: np.random.Generator) -> Ints:
    """Counts that vary as those of a renewal process do: mean n, variance about cv^2 n; where cv is below 1, n.

    A Poisson whose own mean is gamma distributed with variance (cv^2 - 1) n. Worked example (test_counts_vary): n = 100
    and cv = 3 have a standard deviation of 30.
    """
    excess = np.maximum(cvs**2 - 1.0, 0.0)
    bursty = (excess > 1e-9) & (expected > 0.0)
    means = expected.copy()
    means[bursty] = rng.standard_gamma(expected[bursty] / excess[bursty]) * excess[bursty]
    return rng.poisson(means).astype(np.int64)
