"""Requests of ServeGen's clients: the day's rates, each client's share and its own bursts.

    how many    a client's requests in ten minutes: its recorded rate x 600 s x (requests_per_s / the recorded mean),
                rounded at random
    when        `arrivals.spread` with the client's coefficient of variation
    how long    between the recorded quantiles, uniformly in the logarithm; prompt and output independently, since
                their correlation is not recorded

Each window is independent: the requests of ten minutes depend only on the seed and these ten minutes. So a run over
an hour has the same requests as that hour of a run over a day (test_window_equals_that_part_of_the_day). At most half a
million requests are in memory. Prompts have no recorded text or shared prefixes: `share_ratio` of each client's
median prompt counts as one common prefix (0: none).

It is a `Workload` of `experiment`. Worked example (test_a_day_has_the_recorded_rates): language_m-large's first day
has between 151 and 583 requests a second, 279 on average; scaled to a mean of 20, it has between 11 and 42.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

import numpy as np

from functions.api.ids import TenantId
from functions.simulator.workload.crowd import Floats, Ints, rounded, spread
from functions.simulator.workload.request import WorkloadRequest
from studies.servegen.clients import SHARES, WINDOW_S, Clients, Lengths

BLOCK_TOKENS = 64
_SLICE_REQUESTS = 500_000
_FIRST_SHARES = np.concatenate(([0.0], SHARES))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeGenDay:
    clients: Clients
    requests_per_s: float | None = None  # mean over the whole time; None: as recorded
    share_ratio: float = 0.0  # part of a client's median prompt that all its prompts share
    pool: str | None = None

    @property
    def block_tokens(self) -> int:
        return BLOCK_TOKENS

    def rates_per_s(self) -> list[tuple[float, float]]:
        """Return for every ten minutes: seconds since `begins_s`, and requests a second."""
        clients, factor = self.clients, self._factor()
        first = clients.begins_s // WINDOW_S * WINDOW_S
        return [
            (float(max(0, starts_s - clients.begins_s)), factor * self._recorded_per_s(starts_s))
            for starts_s in range(first, clients.begins_s + clients.seconds, WINDOW_S)
        ]

    def at_rate(self, requests_per_s: float, seed: int) -> Iterator[WorkloadRequest]:
        """Yield the requests scaled to another mean rate."""
        return ServeGenDay(
            clients=self.clients, requests_per_s=requests_per_s, share_ratio=self.share_ratio, pool=self.pool
        ).requests(seed)

    def requests(self, seed: int) -> Iterator[WorkloadRequest]:
        """Yield the requests in order of time; second 0 is `begins_s`."""
        clients, factor = self.clients, self._factor()
        for starts_s in clients.windows:
            expected = self._recorded_per_s(starts_s) * factor * WINDOW_S
            slices = max(1, ceil(expected / _SLICE_REQUESTS))
            for number in range(slices):
                rng = np.random.default_rng((seed, starts_s, number))
                yield from self._slice(starts_s, number, WINDOW_S / slices, factor, rng)

    def _factor(self) -> float:
        if self.requests_per_s is None:
            return 1.0
        clients = self.clients
        asked = sum(self._recorded_per_s(starts_s) * self._inside_s(starts_s) for starts_s in clients.windows)
        return self.requests_per_s / (asked / clients.seconds)

    def _recorded_per_s(self, starts_s: int) -> float:
        window = self.clients.windows.get(starts_s)
        return float(window.rates_per_s.sum()) if window is not None else 0.0

    def _inside_s(self, starts_s: int) -> int:
        begins_s = self.clients.begins_s
        return min(starts_s + WINDOW_S, begins_s + self.clients.seconds) - max(starts_s, begins_s)

    def _slice(
        self, starts_s: int, number: int, slice_s: float, factor: float, rng: np.random.Generator
    ) -> Iterator[WorkloadRequest]:
        clients, window = self.clients, self.clients.windows[starts_s]
        counts = rounded(window.rates_per_s * (factor * slice_s), rng)
        owners, times = spread(counts, window.cvs, rng)
        prompts, outputs, shared = self._lengths(starts_s, window.owners, counts, owners, rng)
        from_s = starts_s - clients.begins_s + number * slice_s
        names = [TenantId(clients.names[owner]) for owner in window.owners]
        blocks = [_blocks(owner, tokens) for owner, tokens in zip(window.owners.tolist(), shared, strict=True)]
        rows = zip(
            owners.tolist(), (times * slice_s + from_s).tolist(), prompts.tolist(), outputs.tolist(), strict=True
        )
        for owner, at_s, prompt, output in rows:
            if 0.0 <= at_s < clients.seconds:
                whole = blocks[owner][: prompt // BLOCK_TOKENS]
                yield WorkloadRequest(at_s, names[owner], prompt, output, blocks=whole, pool=self.pool)

    def _lengths(
        self, starts_s: int, names: Ints, counts: Ints, owners: Ints, rng: np.random.Generator
    ) -> tuple[Ints, Ints, list[int]]:
        """Return the lengths of each request, and the shared tokens of each client."""
        prompts, outputs = np.empty(len(owners), dtype=np.int64), np.empty(len(owners), dtype=np.int64)
        by_owner = np.argsort(owners, kind="stable")
        ends = np.cumsum(counts).tolist()
        shared = []
        for index, count in enumerate(counts.tolist()):
            known = self.clients.lengths_at(int(names[index]), starts_s)
            rows = by_owner[ends[index] - count : ends[index]]
            prompts[rows] = sum(_drawn(part, rng.random(count)) for part in known.prompt_parts)
            outputs[rows] = _drawn(known.output, rng.random(count))
            shared.append(self._shared_tokens(known))
        return np.maximum(prompts, 1), np.maximum(outputs, 1), shared

    def _shared_tokens(self, known: Lengths) -> int:
        median = sum(float(part[4]) for part in known.prompt_parts)
        return int(self.share_ratio * median)


def _drawn(tokens_at_shares: Floats, shares: Floats) -> Ints:
    """Return tokens at shares of 0 to 1; below the first quantile it is the first."""
    known = np.log(np.maximum(tokens_at_shares, 0.5))
    found = np.interp(shares, _FIRST_SHARES, np.concatenate((known[:1], known)))
    return np.asarray(np.rint(np.exp(found)), dtype=np.int64)


def _blocks(owner: int, tokens: int) -> tuple[int, ...]:
    return tuple(-1 - (owner * 10_000 + index) for index in range(min(10_000, tokens // BLOCK_TOKENS)))
