"""ServeGen's clients: the rate, burstiness and lengths of each (arXiv 2505.09999, Apache-2.0).

    <pool>_rates.csv[.gz]     client_id, window_start_s, rate_rps, cv        windows of 10 minutes; in all others, none
    <pool>_lengths.csv[.gz]   client_id, window_start_s, field, p01 ... p99, max    windows of 6 hours

Pools are `language_m-large`, `-mid`, `-small`, `reason_deepseek-r1` and `multimodal_mm-image`, whose prompts are text
and image tokens together. A client without lengths (55 of 421, mostly large ones) uses those of the client with the
nearest rate over the whole recording; `Clients.borrowing` counts them. A cv above 20 counts as 20: by then all of ten
minutes' requests come in a few moments, and one recorded cv is 1,038.

Only the requested windows are in memory: a day of the largest pool is 7,000 rows. Neighbours: `day` makes
requests.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np

from functions.simulator.workload.crowd import Floats, Ints
from functions.simulator.workload.trace_text import TraceUnreadable, refuse, table

WINDOW_S = 600
LENGTHS_WINDOW_S = 6 * 3600
_MOST_CLIENTS = 100_000
_MOST_TOKENS = 10_000_000.0
_MOST_PER_S = 1e6
_MOST_CV = 1e6
_KEPT_CV = 20.0
_QUANTILES = ("p01", "p05", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "max")
SHARES = np.array([0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0])
_PROMPT_FIELDS = frozenset({"input_tokens", "text_tokens", "image_tokens"})
_OUTPUT_FIELD = "output_tokens"


@dataclass(frozen=True, slots=True)
class Window:
    """Ten minutes; one entry for each client that sends requests."""

    owners: Ints  # index into `Clients.names`
    rates_per_s: Floats
    cvs: Floats


@dataclass(frozen=True, slots=True)
class Lengths:
    """Six hours of one client: tokens at `SHARES`; a prompt may have several parts."""

    starts_s: int
    prompt_parts: tuple[Floats, ...]
    output: Floats


@dataclass(frozen=True, slots=True)
class Clients:
    pool: str
    begins_s: int
    seconds: int
    names: tuple[str, ...]
    windows: Mapping[int, Window]  # by their start in seconds
    lengths: tuple[tuple[Lengths, ...], ...]  # by client, in order of time
    borrowing: int  # clients that use another's lengths

    def lengths_at(self, owner: int, when_s: int) -> Lengths:
        """Return the latest lengths known at that time, or the first."""
        known = self.lengths[owner]
        found = bisect_right(known, when_s, key=lambda each: each.starts_s)
        return known[max(0, found - 1)]


def read_clients(directory: Path, pool: str, begins_s: int = 0, seconds: int = 86_400) -> Clients:
    """Return clients with requests from `begins_s` on for `seconds`, on the recording's clock; TraceUnreadable."""
    totals: dict[int, float] = {}
    rates = _rates(_file(directory, pool, "rates"), begins_s, begins_s + seconds, totals)
    if not rates:
        raise TraceUnreadable(f"{directory}: {pool} has no requests from second {begins_s} on")
    asking = sorted({client for rows in rates.values() for client, _, _ in rows})
    known = _lengths(_file(directory, pool, "lengths"))
    if not known:
        raise TraceUnreadable(f"{directory}: {pool} has no lengths at all")
    index = {client: number for number, client in enumerate(asking)}
    windows = {
        starts_s: Window(
            np.array([index[client] for client, _, _ in rows], dtype=np.int64),
            np.array([rate for _, rate, _ in rows]),
            np.array([cv for _, _, cv in rows]),
        )
        for starts_s, rows in sorted(rates.items())
    }
    lenders = _lenders(asking, known, totals)
    return Clients(
        pool, begins_s, seconds, tuple(f"{pool}-{client}" for client in asking), windows,
        tuple(known[lenders[client]] for client in asking),
        sum(client not in known for client in asking),
    )  # fmt: skip


def pools(directory: Path) -> list[str]:
    """Return the names of the pools in a folder."""
    return sorted({path.name.split("_rates.csv")[0] for path in directory.glob("*_rates.csv*")})


def _file(directory: Path, pool: str, what: str) -> Path:
    for name in (f"{pool}_{what}.csv", f"{pool}_{what}.csv.gz"):
        if (directory / name).is_file():
            return directory / name
    raise TraceUnreadable(f"{directory}: no {pool}_{what}.csv or .csv.gz; pools there: {', '.join(pools(directory))}")


_Rates = dict[int, list[tuple[int, float, float]]]


def _rates(path: Path, begins_s: int, ends_s: int, totals: dict[int, float]) -> _Rates:
    """Return the requested windows; add each client's rates over all windows to `totals`."""
    found: _Rates = {}
    for number, cells in table(path, ("client_id", "window_start_s", "rate_rps", "cv")):
        try:
            client, starts_s, rate, cv = int(cells[0]), int(cells[1]), float(cells[2]), float(cells[3])
        except ValueError as error:
            raise TraceUnreadable(f"{path}, line {number}: {error}") from error
        if not (0.0 <= rate <= _MOST_PER_S and 0.0 <= cv <= _MOST_CV and starts_s >= 0 and starts_s % WINDOW_S == 0):
            refuse(path, number, "a rate, a cv or a window that cannot be")
        totals[client] = totals.get(client, 0.0) + rate
        if len(totals) > _MOST_CLIENTS:
            refuse(path, number, f"more than {_MOST_CLIENTS} clients")
        if starts_s + WINDOW_S <= begins_s or starts_s >= ends_s or not rate:
            continue
        found.setdefault(starts_s, []).append((client, rate, min(max(cv, 0.01), _KEPT_CV)))
    return found


def _lengths(path: Path) -> dict[int, tuple[Lengths, ...]]:
    fields: dict[int, dict[int, dict[str, Floats]]] = {}
    for number, cells in table(path, ("client_id", "window_start_s", "field", *_QUANTILES)):
        try:
            client, starts_s = int(cells[0]), int(cells[1])
            values = [float(cell) for cell in cells[3:]]
        except ValueError as error:
            raise TraceUnreadable(f"{path}, line {number}: {error}") from error
        if cells[2] not in _PROMPT_FIELDS and cells[2] != _OUTPUT_FIELD:
            continue  # a ratio of reasoning: already part of the output
        if not all(isfinite(value) and 0.0 <= value <= _MOST_TOKENS for value in values) or values != sorted(values):
            refuse(path, number, "lengths that are no quantiles of tokens")
        fields.setdefault(client, {}).setdefault(starts_s, {})[cells[2]] = np.array(values)
        if len(fields) > _MOST_CLIENTS:
            refuse(path, number, f"more than {_MOST_CLIENTS} clients")
    return {client: found for client, times in fields.items() if (found := tuple(_whole(times)))}


def _whole(times: Mapping[int, Mapping[str, Floats]]) -> Iterator[Lengths]:
    """Yield lengths in order of time, without those that lack a prompt or an output."""
    for starts_s, found in sorted(times.items()):
        parts = tuple(values for field, values in sorted(found.items()) if field in _PROMPT_FIELDS)
        if parts and _OUTPUT_FIELD in found:
            yield Lengths(starts_s, parts, found[_OUTPUT_FIELD])


def _lenders(asking: list[int], known: Mapping[int, object], totals: Mapping[int, float]) -> dict[int, int]:
    """Return the client whose lengths each client uses: its own, or those of the nearest rate with lengths."""
    return {
        client: client
        if client in known
        else min(known, key=lambda other: (abs(totals.get(other, 0.0) - totals[client]), other))
        for client in asking
    }
