"""Autoscaler state on disk: desired replicas, measured speeds, and forecasts that take days to learn again.

The controller reads the desired replicas before it inspects the processes. Otherwise it would end replicas that the
autoscaler has started, while they serve. Forecasts have one owner; the whole file is replaced by rename at most once
a minute, so a kill loses up to one minute. Size with every figure at its longest:

    a pool  1,008 + 144 levels, 5 x 360 errors, 120 x (1 + 5) ahead: 3,672 figures of at most 25 bytes = 92 KB
    a file  64 pools x 92 KB = 5.9 MB, under FORECASTS_MAX_BYTES (test_largest_forecast_fits_its_file)

If a file is malformed, of another version or has impossible values (a profile of another length, a negative rate), a
warning is logged and the memory is empty: pools then begin at their minReplicas. JSON has no NaN and no infinity.
Neighbours: `decisions.autoscaling.forecast_memory` decides which part of a forecast is valid after a gap.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec

from functions.controller.autoscaling.allocation import Allocation
from functions.controller.local.files import replace_file
from functions.decisions.autoscaling.forecast import MOST_AHEAD_BINS, Demand
from functions.decisions.autoscaling.forecast_memory import KEPT_STARTS, Memory, Source, StartupTimes
from functions.decisions.autoscaling.forecast_methods import BINS_KEPT, DAY_S, KEPT, METHODS, WEEK_S, Score, Season

Rate = Annotated[float, msgspec.Meta(ge=0.0, le=1e30)]
Error = Annotated[float, msgspec.Meta(ge=-1.0, le=1e30)]
Ratio = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
UnixTime = Annotated[float, msgspec.Meta(ge=0.0, le=1e11)]
Count = Annotated[int, msgspec.Meta(ge=0, le=10**10)]
Each = msgspec.Meta(min_length=len(METHODS), max_length=len(METHODS))  # one item for each method


class KeptSeason(msgspec.Struct, frozen=True):
    levels: Annotated[tuple[Rate | None, ...], msgspec.Meta(max_length=Season(WEEK_S).slots)] = ()
    open_slot: Count | None = None
    open_sum: Rate = 0.0
    open_count: Count = 0

    @classmethod
    def of(cls, season: Season) -> "KeptSeason":
        return cls(season.levels, season.open_slot, season.open_sum, season.open_count)

    def season(self, period_s: float) -> Season:
        """Return the stored season with a period of `period_s`. Raise ValueError if the number of levels does not fit
        it."""
        known = Season(
            period_s,
            levels=self.levels,
            open_slot=self.open_slot,
            open_sum=self.open_sum,
            open_count=self.open_count,
        )
        if len(self.levels) not in (0, known.slots):
            raise ValueError(f"{len(self.levels)} levels of {known.slots}")
        return known


class KeptScore(msgspec.Struct, frozen=True):
    error_sum: Rate = 0.0
    came_sum: Rate = 0.0
    errors: Annotated[tuple[Error, ...], msgspec.Meta(max_length=KEPT)] = ()


class KeptForecast(msgspec.Struct, frozen=True, kw_only=True):
    replica_per_s: Rate | None = None
    deferrable_per_s: Rate = 0.0
    looked_s: UnixTime | None = None
    level_per_s: Rate | None = None
    swing_ratio: Ratio = 0.0
    open_bin: Count | None = None
    open_sum: Rate = 0.0
    open_count: Count = 0
    bins: Annotated[tuple[Rate, ...], msgspec.Meta(max_length=BINS_KEPT)] = ()
    day: KeptSeason = KeptSeason()
    week: KeptSeason = KeptSeason()
    scores: Annotated[tuple[KeptScore, ...], Each] = (KeptScore(),) * len(METHODS)
    ahead: Annotated[
        tuple[tuple[Count, Annotated[tuple[Rate, ...], Each]], ...], msgspec.Meta(max_length=MOST_AHEAD_BINS)
    ] = ()
    starts_s: dict[Source, Annotated[tuple[Rate, ...], msgspec.Meta(max_length=KEPT_STARTS)]] = {}

    @classmethod
    def from_memory(cls, memory: Memory) -> "KeptForecast":
        demand = memory.demand
        return cls(
            replica_per_s=demand.replica_per_s,
            deferrable_per_s=demand.deferrable_per_s,
            looked_s=demand.looked_s,
            level_per_s=demand.level_per_s,
            swing_ratio=demand.swing_ratio,
            open_bin=demand.open_bin,
            open_sum=demand.open_sum,
            open_count=demand.open_count,
            bins=demand.bins,
            day=KeptSeason.of(demand.day),
            week=KeptSeason.of(demand.week),
            scores=tuple(KeptScore(score.error_sum, score.came_sum, score.errors) for score in demand.scores),
            ahead=demand.ahead,
            starts_s=dict(memory.starts.seen_s),
        )

    def memory(self) -> Memory:
        """Return what the forecast had learnt. Raise ValueError if the levels of the day or the week do not fit the
        period."""
        demand = Demand(
            replica_per_s=self.replica_per_s,
            deferrable_per_s=self.deferrable_per_s,
            looked_s=self.looked_s,
            level_per_s=self.level_per_s,
            swing_ratio=self.swing_ratio,
            open_bin=self.open_bin,
            open_sum=self.open_sum,
            open_count=self.open_count,
            bins=self.bins,
            day=self.day.season(DAY_S),
            week=self.week.season(WEEK_S),
            scores=tuple(Score(score.error_sum, score.came_sum, score.errors) for score in self.scores),
            ahead=self.ahead,
        )
        starts = StartupTimes()
        for source, times_s in self.starts_s.items():
            for took_s in times_s:
                starts = starts.with_start(source, took_s)
        return Memory(demand, starts)


VERSION = 1
FORECASTS_MAX_BYTES = 8 * 1024 * 1024
MAX_POOLS = 64  # a machine has ports for 20 replicas
KEEP_EVERY_S = 60.0

_log = logging.getLogger(__name__)


class _Version(msgspec.Struct, frozen=True):
    version: int = 0
    methods: tuple[str, ...] = ()


class _KeptForecasts(msgspec.Struct, frozen=True):
    version: int
    methods: tuple[str, ...]  # order of the scores and predictions
    pools: dict[str, KeptForecast]


class Forecasts:
    """Forecast memories by pool, loaded from a file. One owner."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept_s = float("-inf")
        self.known = _read_forecasts(path)

    def keep(self, memories: Mapping[str, Memory], now_s: float) -> None:
        """Write the memories of at most MAX_POOLS pools to disk, unless there are none or that was done less than a
        minute ago. `now_s` is monotonic. Blocks. If the write fails, a warning is logged."""
        if now_s - self._kept_s < KEEP_EVERY_S or not memories:
            return
        self._kept_s = now_s
        pools = {name: KeptForecast.from_memory(memory) for name, memory in list(memories.items())[:MAX_POOLS]}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, msgspec.json.encode(_KeptForecasts(VERSION, METHODS, pools)))
        except OSError as error:
            _log.warning("%s: forecasts cannot be stored: %s; after a restart they start anew", self._path, error)


def _read_forecasts(path: Path) -> dict[str, Memory]:
    try:
        with path.open("rb") as file:
            content = file.read(FORECASTS_MAX_BYTES + 1)
        return _decode_forecasts(content)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:  # msgspec's errors and Unicode's are ValueErrors
        _log.warning("%s: the stored forecasts are unusable, so forecasts start anew: %s", path, error)
        return {}


def _decode_forecasts(content: bytes) -> dict[str, Memory]:
    if len(content) > FORECASTS_MAX_BYTES:
        raise ValueError(f"over {FORECASTS_MAX_BYTES} bytes")
    head = msgspec.json.decode(content, type=_Version)
    if (head.version, head.methods) != (VERSION, METHODS):
        raise ValueError(f"version {head.version} with {', '.join(head.methods) or 'no methods'}, not {VERSION}")
    pools = msgspec.json.decode(content, type=_KeptForecasts).pools
    if len(pools) > MAX_POOLS:
        raise ValueError(f"over {MAX_POOLS} pools")
    return {name: pool.memory() for name, pool in pools.items()}


MAX_BYTES = 1024 * 1024
MAX_SPEEDS = 4096
_SAME = 0.05
Number = Annotated[int, msgspec.Meta(ge=0, le=100_000)]


class KeptPool(msgspec.Struct, frozen=True):
    count: Number
    standby: tuple[Number, ...] = ()


class _KeptSizes(msgspec.Struct, frozen=True):
    pools: dict[str, KeptPool] = {}
    alone_tokens_per_s: dict[str, Annotated[float, msgspec.Meta(ge=0.0)]] = {}  # by pool


def read_sizes(path: Path) -> dict[str, Allocation]:
    try:
        return {name: Allocation(pool.count, frozenset(pool.standby)) for name, pool in _read(path).pools.items()}
    except ValueError:
        return {}


def write_sizes(path: Path, allocations: dict[str, Allocation]) -> None:
    """Write the allocations, which replace those in the file; leave the speeds in it as they are."""
    pools = {
        name: KeptPool(allocation.count, tuple(sorted(allocation.standby)))
        for name, allocation in sorted(allocations.items())
    }
    _write(path, _KeptSizes(pools, _read(path).alone_tokens_per_s))


class KeptSpeeds:
    """Speed of a single stream by pool. One owner; only `write_sizes` writes the same file, never concurrently. If a
    controller starts in the middle of a busy day, no stream runs alone. Without these speeds the utilization would be
    unknown until the night."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.known = dict(_read(path).alone_tokens_per_s)

    def save_speeds(self, speeds: Mapping[str, float]) -> None:
        """Write the speeds if one has changed by more than a twentieth; leave the allocations as they are. Blocks."""
        if all(abs(speed - self.known.get(name, 0.0)) <= _SAME * speed for name, speed in speeds.items()):
            return
        newest = dict(list(speeds.items())[-MAX_SPEEDS:])
        _write(self._path, _KeptSizes(_read(self._path).pools, newest))
        self.known = dict(speeds)


def _read(path: Path) -> _KeptSizes:
    try:
        return msgspec.json.decode(path.read_bytes()[: MAX_BYTES + 1], type=_KeptSizes)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, ValueError):
        return _KeptSizes()


def _write(path: Path, what: _KeptSizes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, msgspec.json.encode(what))
