"""Start times of chats: tenants by Zipf's law, each with its own burstiness and adapters, a daily curve, and spikes.

    weight of tenant r      (r + 1)^-zipf
    its burstiness          coefficient of variation of its gaps: log-normal over tenants with the median `burstiness`
                            and the 95th percentile `burstiness_p95` (ServeGen's clients: 1.2 and 9)
    adapters                adapter a belongs to tenant a mod tenants; chats of tenants with adapters use one of them
                            so often that `adapter_ratio` of all chats do, its first ones more often (Zipf again)
    rate                    mean x (1 + swing sin(2 pi (t / day - 1/4))) x spikes: lowest when the day begins

A spike rises over `rise_s` to `factor` times the rate, lasts, and falls as it rose; a spike with an adapter
multiplies only that adapter's chats. Worked example (test_spike_rises_within_its_rise_time): 5 times within 30 s
from 100 s on: at 115 s there are 3 times as many, at 130 s 5 times.

Times of many senders in one window (`spread`):

    gaps of a sender    gamma distributed, coefficient of variation cv: shape 1 / cv^2; cv 1 is Poisson
    its times           count + 1 gaps, added up and stretched over the window: exactly `count` fall into it

Stretching preserves the rate, however bursty the sender: without it, a sender with cv 9 would be off by cv^2 / 2 = 40
requests a window (test_a_bursty_sender_keeps_its_rate). The caller decides the counts: `rounded` for a recorded rate,
`drawn` for a mean rate. All of it is numpy over all senders together, about 0.2 us per request.

Memory is one window of chats and a few numbers per tenant, for any traffic. `synthetic` makes the chats.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from math import exp, log, pi
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LAST = 1.0 - 1e-9  # end of a window; 1 belongs to the next
_LEAST_GAP = 1e-300  # a gamma of small shape can be 0 in floating point; a sender's gaps must not all be 0
_WINDOW_S = 60.0
_WINDOW_CHATS = 200_000
_STEPS = 60  # per window; the rate is constant between them
_NORMAL_P95 = 1.6449


class Arrivals(NamedTuple):
    """Arrivals in order of time."""

    owners: Ints  # index of the sender
    times: Floats  # shares of the window, from 0 to below 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    at_s: float
    factor: float
    rise_s: float = 30.0
    lasts_s: float = 300.0
    adapter: int | None = None  # index; None: all traffic

    def height(self, times_s: Floats) -> Floats:
        """Return the spike's height at each time: 0 outside of it, 1 at its top."""
        rise_s = max(self.rise_s, 1e-9)
        ends_s = self.at_s + self.rise_s + self.lasts_s
        return np.clip(np.minimum((times_s - self.at_s) / rise_s, 1.0 - (times_s - ends_s) / rise_s), 0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    chats_per_s: float
    tenants: int
    zipf: float
    burstiness: float
    burstiness_p95: float | None  # None means that all tenants are alike
    adapters: int
    adapter_ratio: float
    adapter_zipf: float
    swing_ratio: float
    day_s: float
    spikes: tuple[Spike, ...]


class Begun(NamedTuple):
    """The start of one chat."""

    at_s: float
    tenant: int
    adapter: int | None


def begun(crowd: Crowd, from_s: float, until_s: float, seed: int) -> Iterator[Begun]:
    """Yield the starts of chats in order of time."""
    rng = np.random.default_rng((seed, 0))
    ranked = (np.arange(crowd.tenants, dtype=np.float64) + 1.0) ** -crowd.zipf
    weights: Floats = np.asarray(ranked / ranked.sum(), dtype=np.float64)
    cvs = _burstiness(crowd, rng)
    choose = _Adapters(crowd, weights)
    at_s = from_s
    while at_s < until_s:
        window_s = min(until_s - at_s, _WINDOW_S, max(1e-3, _WINDOW_CHATS / _highest_per_s(crowd, at_s)))
        window = _Window(at_s, window_s)
        found = _usual(crowd, weights, cvs, window, rng)
        sided = [_spiked(crowd, spike, choose, window, rng) for spike in crowd.spikes]
        parts = [(found, None)] + [(times, spike.adapter) for spike, times in zip(crowd.spikes, sided, strict=True)]
        yield from _merged(parts, choose, rng)
        at_s += window_s


def _burstiness(crowd: Crowd, rng: np.random.Generator) -> Floats:
    if crowd.burstiness_p95 is None:
        return np.full(crowd.tenants, crowd.burstiness)
    width = log(crowd.burstiness_p95 / crowd.burstiness) / _NORMAL_P95
    return np.clip(crowd.burstiness * np.exp(width * rng.standard_normal(crowd.tenants)), 0.1, 20.0)


def _curve(crowd: Crowd, times_s: Floats) -> Floats:
    """Return the rate of chats at each time, relative to the mean: the daily swing and the spikes of all chats."""
    curve = 1.0 + crowd.swing_ratio * np.sin(2 * pi * (times_s / crowd.day_s - 0.25))
    for spike in crowd.spikes:
        if spike.adapter is None:
            curve = curve * (1.0 + (spike.factor - 1.0) * spike.height(times_s))
    return np.maximum(curve, 0.0)


def _highest_per_s(crowd: Crowd, at_s: float) -> float:
    return crowd.chats_per_s * max(1e-9, float(_curve(crowd, _Window(at_s, _WINDOW_S).steps()).max()))


class _Window(NamedTuple):
    at_s: float
    lasts_s: float

    def steps(self) -> Floats:
        """Return the time in seconds of the middle of each of the window's _STEPS steps."""
        return np.asarray(self.at_s + self.lasts_s * (np.arange(_STEPS) + 0.5) / _STEPS, dtype=np.float64)


class _Times(NamedTuple):
    owners: list[int]
    times_s: list[float]


def _usual(crowd: Crowd, weights: Floats, cvs: Floats, window: _Window, rng: np.random.Generator) -> _Times:
    curve = _curve(crowd, window.steps())
    expected = weights * (crowd.chats_per_s * window.lasts_s * float(curve.mean()))
    return _placed(spread(drawn(expected, cvs, rng), cvs, rng), curve, window)


def _placed(found: Arrivals, curve: Floats, window: _Window) -> _Times:
    """Map evenly spread times to a rate that follows the curve."""
    risen = np.concatenate(([0.0], np.cumsum(curve)))
    if risen[-1] <= 0.0:
        return _Times([], [])
    shares = np.interp(found.times, risen / risen[-1], np.arange(_STEPS + 1) / _STEPS)
    return _Times(found.owners.tolist(), (window.at_s + shares * window.lasts_s).tolist())


def _spiked(crowd: Crowd, spike: Spike, choose: "_Adapters", window: _Window, rng: np.random.Generator) -> _Times:
    """Return the chats that one adapter's spike adds in the window; none for a spike of all chats."""
    times_s = window.steps()
    height = spike.height(times_s)
    if spike.adapter is None or not height.any():
        return _Times([], [])
    curve = height * _curve(crowd, times_s)
    usual_per_s = crowd.chats_per_s * choose.share_of(spike.adapter)
    count = rng.poisson(max(0.0, spike.factor - 1.0) * usual_per_s * window.lasts_s * float(curve.mean()))
    owners = np.full(count, choose.owner_of(spike.adapter))
    return _placed(Arrivals(owners, np.sort(rng.random(count))), curve, window)


def _merged(parts: list[tuple[_Times, int | None]], choose: "_Adapters", rng: np.random.Generator) -> Iterator[Begun]:
    rows: list[tuple[float, int, int | None]] = []
    for times, adapter in parts:
        if adapter is None:
            uses, which = rng.random(len(times.owners)).tolist(), rng.random(len(times.owners)).tolist()
            rows += [
                (at_s, owner, choose.of(owner, use, one))
                for owner, at_s, use, one in zip(times.owners, times.times_s, uses, which, strict=True)
            ]
        else:
            rows += [(at_s, owner, adapter) for owner, at_s in zip(times.owners, times.times_s, strict=True)]
    if len(parts) > 1:
        rows.sort(key=lambda row: row[0])
    return map(Begun._make, rows)


class _Adapters:
    """Owners of the adapters, and how often each adapter is used."""

    def __init__(self, crowd: Crowd, weights: Floats) -> None:
        self._tenants, self._adapters = crowd.tenants, crowd.adapters
        self._weights, self._zipf = weights, crowd.adapter_zipf
        owning = float(weights[: min(crowd.adapters, crowd.tenants)].sum())
        self._use_ratio = min(1.0, crowd.adapter_ratio / owning) if owning else 0.0
        most = -(-crowd.adapters // crowd.tenants)
        self._risen: list[float] = np.cumsum((np.arange(most) + 1.0) ** -crowd.adapter_zipf).tolist()

    def of(self, tenant: int, use: float, which: float) -> int | None:
        """Return the adapter of a tenant's chat, or None for the base model, from two random numbers between 0 and
        1."""
        if use >= self._use_ratio or tenant >= self._adapters:
            return None
        known = self._known(tenant)
        return tenant + self._tenants * bisect_left(self._risen, which * self._risen[known - 1], 0, known - 1)

    def owner_of(self, adapter: int) -> int:
        return adapter % self._tenants

    def share_of(self, adapter: int) -> float:
        """Return the adapter's share of all chats."""
        tenant, place = self.owner_of(adapter), adapter // self._tenants
        own: float = (place + 1.0) ** -self._zipf / self._risen[self._known(tenant) - 1]
        return float(self._weights[tenant]) * self._use_ratio * own

    def _known(self, tenant: int) -> int:
        return (self._adapters - tenant - 1) // self._tenants + 1


def log_normal_tokens(normal: float, median: int, width: float, most: int) -> int:
    """Return a log-normal length for a standard normal number, between 1 and `most` tokens."""
    return max(1, min(most, int(exp(log(median) + width * normal))))


def spread(counts: Ints, cvs: Floats, rng: np.random.Generator) -> Arrivals:
    """Return arrivals, in order, at times from 0 to 1 of one window (see the module); `counts` and `cvs` are by
    sender."""
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
    inside[ends - 1] = False  # the last gap of each sender ends at the window's end
    times, owners = times[inside], senders[ordinals[inside]]
    order = np.argsort(times, kind="stable")
    return Arrivals(owners[order], times[order])


def rounded(expected: Floats, rng: np.random.Generator) -> Ints:
    """Return whole counts with the expected mean: 2.3 becomes 2, or 3 in three of ten cases."""
    return np.floor(expected + rng.random(len(expected))).astype(np.int64)


def drawn(expected: Floats, cvs: Floats, rng: np.random.Generator) -> Ints:
    """Return counts that vary like a renewal process: mean n, variance about cv^2 n, or n if cv is below 1.

    Each is Poisson with a gamma distributed mean of variance (cv^2 - 1) n. Worked example
    (test_counts_vary_with_burstiness): n = 100 and cv = 3 have a standard deviation of 30.
    """
    excess = np.maximum(cvs**2 - 1.0, 0.0)
    bursty = (excess > 1e-9) & (expected > 0.0)
    means = expected.copy()
    means[bursty] = rng.standard_gamma(expected[bursty] / excess[bursty]) * excess[bursty]
    return rng.poisson(means).astype(np.int64)
