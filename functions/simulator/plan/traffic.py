"""Traffic of a plan: the same requests for both sides, window by window.

    recorded    a trace of the fleet itself, unchanged: its pools, tenants, classes and pace
    foreign     a trace of another fleet, distributed to this fleet's pools and tenants at a share of their capacity
    made up     synthetic chats with shared prefixes, with a rush in the middle third of each window

Each seed plays one window. The windows of a trace start evenly spread over it; in a trace shorter than one window,
each window is six tenths of it. A request's assignment depends on its session (else on its position in the trace) and
not on chance: chats stay whole, and a window is identical on both sides and every day.

Requests name models by the pools with their names; each side decides which of a model's pools answers. Distributed
traffic gives each pool's model a rate by what the pool can do, from tenants whose requests start there. A recorded
row names the pool that answered, and `models` maps it to the model. Related modules: `pace` sets rates, `entry`
filters, `functions.simulator.workload` reads and makes requests.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import islice
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Literal
from zlib import crc32

from functions.api.ids import TenantId
from functions.simulator.fleet.start_times import StartSource
from functions.simulator.plan.pace import RUSH_RATIO, Load, PoolShare, rushed, shares_of
from functions.simulator.plan.planned_fleet import PlannedFleet, PlannedPool
from functions.simulator.workload.captured import captured
from functions.simulator.workload.request import WorkloadRequest
from functions.simulator.workload.synthetic import BLOCK_TOKENS, Traffic, synthetic
from functions.simulator.workload.traces import TraceUnreadable, block_tokens_of, read_trace

LAST_S = 3600.0  # seconds of the fleet's own traces that are used
_SAMPLE = 2_000  # requests in the sample that determines the work of one
_SHORT_RATIO = 0.6
_MADE_UP = Traffic(requests_per_s=1.0, seconds=1.0)
_LEAST_S = 1e-3
_ROOMY_TOKENS = 16_384
_NAMED = 3  # tenants listed by name

Kind = Literal["recorded", "foreign", "made up"]


@dataclass(frozen=True, slots=True)
class PlanTraffic:
    kind: Kind
    words: str
    block_tokens: int
    windows: int
    seconds: float  # approximate length of a window
    path: Path | None = None
    count: int = 0  # requests per window
    total: int = 0  # requests in the trace
    stretch: float = 1.0  # factor on the trace's times
    shares: tuple[PoolShare, ...] = ()
    tenants: tuple[TenantId, ...] = ()
    models: Mapping[str, str] = field(default_factory=dict)  # model by pool, for pools that serve another pool's model
    start: StartSource = "cold"  # source of replicas started meanwhile

    def requests(self, window: int) -> Iterator[WorkloadRequest]:
        """Yield a window's requests in order of time, starting at 0; each call makes new ones."""
        if self.path is None:
            parts = [self._made_up(index, share, window) for index, share in enumerate(self.shares)]
            return merge(*parts, key=attrgetter("at_s"))
        return self._dealt(self._window(window))

    def _window(self, window: int) -> Iterator[WorkloadRequest]:
        spare = max(0, self.total - self.count)
        first = spare * (window % self.windows) // max(1, self.windows - 1)
        start_s: float | None = None
        for row in islice(_rows(self.path, self.kind), first, first + self.count):
            start_s = row.at_s if start_s is None else start_s
            row.at_s = (row.at_s - start_s) * self.stretch
            yield row

    def _dealt(self, rows: Iterable[WorkloadRequest]) -> Iterator[WorkloadRequest]:
        whole = sum(share.requests_per_s for share in self.shares)
        for number, row in enumerate(rows):
            mark = crc32((row.session or str(number)).encode())
            tenants = self.tenants
            if row.pool is None and self.shares:
                share = _picked(self.shares, mark / 2**32 * whole)
                row.pool, tenants = share.pool.model, self._askers(share)
            elif row.pool is not None:
                row.pool = self.models.get(row.pool, row.pool)
            if self.kind != "recorded" and tenants:
                row.tenant = tenants[mark % len(tenants)]
            yield row

    def _askers(self, share: PoolShare) -> tuple[TenantId, ...]:
        return self.tenants if share.pool.starts is None else share.pool.starts

    def _made_up(self, index: int, share: PoolShare, window: int) -> Iterator[WorkloadRequest]:
        made = fitting(share.pool.context_window_tokens)
        traffic = replace(made, requests_per_s=share.requests_per_s, seconds=self.seconds, batch_ratio=0.1)
        tenants = self._askers(share)
        for row in synthetic(traffic, 1000 * index + window):
            row.at_s = rushed(row.at_s / self.seconds) * self.seconds
            row.pool = share.pool.model
            row.session = f"{index}-{row.session}"
            row.blocks = tuple(block * 97 + index for block in row.blocks)  # two pools share no cache
            if tenants:
                row.tenant = tenants[crc32(row.tenant.encode()) % len(tenants)]
            yield row


def recorded(path: Path, windows: int, requests: int, models: Mapping[str, str] = MappingProxyType({})) -> PlanTraffic:
    """Return the last hour of the fleet's own traces; raise TraceUnreadable. `models`: see `models_by_pool`."""
    total, lasts_s = _measured(path, "recorded")
    count = _count(total, requests, windows)
    words = f"the fleet's own traces: {total:,} requests of the last {lasts_s / 60:.3g} minutes, as they came"
    return PlanTraffic(
        "recorded", words, block_tokens_of(path), windows, lasts_s * count / total, path=path, count=count,
        total=total, models=models,
    )  # fmt: skip


def models_by_pool(*fleets: PlannedFleet) -> dict[str, str]:
    """Return the model of each pool that serves another pool's, from the first of these fleets with the pool."""
    found: dict[str, str] = {}
    for fleet in fleets:
        for pool in fleet.pools:
            found.setdefault(pool.name, pool.model)
    return {pool: model for pool, model in found.items() if pool != model}


def foreign(
    path: Path, pools: Sequence[PlannedPool], tenants: Sequence[TenantId], load: Load, *, windows: int, requests: int
) -> PlanTraffic:
    """Return traffic from another fleet's trace, played at the rate that gives the pools their load; raise
    TraceUnreadable."""
    total, lasts_s = _measured(path, "foreign")
    sample = list(islice(read_trace(path), _SAMPLE))
    block_tokens = block_tokens_of(path)
    shares = shares_of(pools, sample, block_tokens, load)
    count, per_s = _count(total, requests, windows), sum(share.requests_per_s for share in shares)
    stretch = (total / lasts_s) / per_s
    words = f"{path.name}, {total:,} requests, at {_rates(shares, load)}"
    return PlanTraffic(
        "foreign", words, block_tokens, windows, lasts_s * stretch * count / total, path=path, count=count,
        total=total, stretch=stretch, shares=shares, tenants=tuple(sorted(tenants)),
    )  # fmt: skip


def made_up(
    pools: Sequence[PlannedPool], tenants: Sequence[TenantId], load: Load, *, windows: int, requests: int
) -> PlanTraffic:
    smallest = min(pool.context_window_tokens for pool in pools)
    sample = list(islice(synthetic(replace(fitting(smallest), requests_per_s=10.0, seconds=1e6), 0), _SAMPLE))
    shares = shares_of(pools, sample, BLOCK_TOKENS, load)
    seconds = requests / sum(share.requests_per_s for share in shares)
    words = (
        f"MADE UP, since no requests were recorded: chats of {_MADE_UP.turns} turns that share their tenant's "
        f"beginning, at {_rates(shares, load)}, with a rush of {RUSH_RATIO} "
        "times that"
    )
    return PlanTraffic("made up", words, BLOCK_TOKENS, windows, seconds, shares=shares, tenants=tuple(sorted(tenants)))


def fitting(window_tokens: int) -> Traffic:
    """Return chats that fit in a context window; they are shorter in windows below `_ROOMY_TOKENS`."""
    ratio = min(1.0, window_tokens / _ROOMY_TOKENS)
    return replace(
        _MADE_UP,
        system_tokens=int(_MADE_UP.system_tokens * ratio),
        question_tokens=max(1, int(_MADE_UP.question_tokens * ratio)),
        answer_tokens=max(1, int(_MADE_UP.answer_tokens * ratio)),
    )


def _rates(shares: Sequence[PoolShare], load: Load) -> str:
    told = [
        f"{share.requests_per_s:.3g} a second to {_whose(share)} ({load.at(share.pool.name):.0%})" for share in shares
    ]
    return f"{', '.join(told)} of what the most replicas can do"


def _whose(share: PoolShare) -> str:
    pool = share.pool
    by = f" by {_listed(pool.starts)}" if pool.entry.dedicated_to and pool.starts else ""
    return f"{pool.model}{by}" if pool.name == pool.model else f"{pool.model}{by} for its pool {pool.name}"


def _listed(tenants: Sequence[TenantId]) -> str:
    return ", ".join(tenants[:_NAMED]) + (f" and {len(tenants) - _NAMED} more" if len(tenants) > _NAMED else "")


def _measured(path: Path, kind: Kind) -> tuple[int, float]:
    total, last_s = 0, 0.0
    for row in _rows(path, kind):
        total, last_s = total + 1, row.at_s
    if total < 2:
        raise TraceUnreadable(f"{path}: fewer than two requests")
    return total, max(_LEAST_S, last_s)


def _rows(path: Path | None, kind: Kind) -> Iterator[WorkloadRequest]:
    if path is None:
        return iter(())
    return captured(path, LAST_S) if kind == "recorded" else read_trace(path)


def _count(total: int, requests: int, windows: int) -> int:
    if windows == 1:
        return min(total, requests)
    return max(2, min(requests, int(_SHORT_RATIO * total)))


def _picked(shares: Sequence[PoolShare], point: float) -> PoolShare:
    for share in shares:
        point -= share.requests_per_s
        if point < 0.0:
            return share
    return shares[-1]
