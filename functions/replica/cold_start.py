"""Cold start of an engine by stage, from the start of its process to its first answer.

    imports        from the process's start until it begins to load its model: imports, configuration, worker processes
    weights        reading them, as its log says
    compile        torch.compile, as its log says; on CPU the time between the lines that begin and end the compilation
    graphs         capturing them, as its log says
    setup          the rest until its server answers; without a log, the whole time until then
    first_answer   until a first request was answered
    warm_up        compilation for other kinds of requests (`warm_up`)

The process's start is in the engine's metrics; if it is missing, the agent's first poll counts. A log has times to
the second, and durations for some stages. It is read once, from its end; no stage may exceed the total. An engine
that served before the agent started is not measured.

Neighbours: `monitor` polls each second; heartbeats carry the result (`functions.fleet.heartbeat`).
"""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from functions.fleet.heartbeat import ColdStage

MOST_S = 7200.0
_TAIL_BYTES = 512 * 1024
_LINE = re.compile(
    r"(?:\((?P<who>[^)]{1,64})\) )?[A-Z]{4,8} (?P<at>\d\d-\d\d \d\d:\d\d:\d\d) \[[^\]]{1,64}\] (?P<text>.{1,400})"
)
_BEGINS_TO_LOAD = "Starting to load model "
_TOOK: Mapping[ColdStage, re.Pattern[str]] = {
    "weights": re.compile(r"Loading weights took (\d{1,5}\.\d{1,6}) seconds"),
    "compile": re.compile(r"(?:\[[^\]]{1,64}\] )?torch\.compile took (\d{1,5}\.\d{1,6}) s in total"),
    "graphs": re.compile(r"Graph capturing finished in (\d{1,5}) secs"),
}
_COMPILES, _HAS_COMPILED = "Warming up model for the compilation", "Warming up done"  # on CPU; the log has no duration

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogTimes:
    """Times of one start in a log."""

    loads_unix_s: float | None = None  # when it began to load its model
    took_s: Mapping[ColdStage, float] | None = None


class ColdStart:
    """Cold start of one engine, across its processes. Owned by the agent's loop. Times are unix seconds."""

    def __init__(self, log_file: Path | None, wall_clock: Callable[[], float] = time.time) -> None:
        self._log_file = log_file
        self._wall_clock = wall_clock
        self.renew()

    def renew(self) -> None:
        """Forget the times of the engine's former process: the start of the next one counts from now."""
        self._began_unix_s = self._wall_clock()
        self._listens_unix_s: float | None = None
        self._answers_unix_s: float | None = None

    def record_listening(self, process_began_unix_s: float | None) -> None:
        """Record the first poll at which the server answers, and the start of its process if known and plausible; later
        calls do nothing."""
        if self._listens_unix_s is None:
            self._listens_unix_s = self._wall_clock()
            if process_began_unix_s is not None and 0.0 <= self._listens_unix_s - process_began_unix_s <= MOST_S:
                self._began_unix_s = process_began_unix_s

    def record_first_answer(self) -> None:
        """Record the time of the answer to the engine's first request; later calls do nothing."""
        if self._answers_unix_s is None:
            self._answers_unix_s = self._wall_clock()

    async def stages(self) -> dict[ColdStage, float]:
        """Return the seconds of each stage of the start; call it once the engine serves, which ends the last stage.
        Empty if times are missing or contradict each other, as after a clock jump."""
        listens, answers, serves = self._listens_unix_s, self._answers_unix_s, self._wall_clock()
        if listens is None or answers is None or not self._began_unix_s <= listens <= answers <= serves:
            return {}
        log = LogTimes()
        if self._log_file is not None:
            log = await asyncio.to_thread(_read, self._log_file, self._began_unix_s, listens)
        found = compute_stages(self._began_unix_s, listens, log)
        found["first_answer"], found["warm_up"] = answers - listens, serves - answers
        _log.info("cold start: %s", ", ".join(f"{stage} {took_s:.1f} s" for stage, took_s in found.items()))
        return {stage: round(took_s, 3) for stage, took_s in found.items()}


def compute_stages(began_unix_s: float, listens_unix_s: float, log: LogTimes) -> dict[ColdStage, float]:
    """Return the seconds of each stage until the server answers; `setup` is what the log does not explain. Worked
    example (test_worked_example_of_stages): started at 0 s, it begins to load at 76 s and listens at 168 s. Its log has
    2.5 s of weights, 45 s of compilation and 24 s of graphs, so setup took 20.5 s."""
    left_s = listens_unix_s - began_unix_s
    found: dict[ColdStage, float] = {}
    if log.loads_unix_s is not None:
        found["imports"] = min(left_s, max(0.0, log.loads_unix_s - began_unix_s))
        left_s -= found["imports"]
    for stage, took_s in (log.took_s or {}).items():
        found[stage] = min(left_s, took_s)
        left_s -= found[stage]
    found["setup"] = left_s
    return found


def _read(file: Path, began_unix_s: float, listens_unix_s: float) -> LogTimes:
    try:
        with file.open("rb") as log:
            log.seek(max(0, log.seek(0, 2) - _TAIL_BYTES))
            text = log.read(_TAIL_BYTES).decode(errors="replace")
    except OSError as error:
        _log.info("the engine's log cannot be read, so its start counts as one stage: %s", error)
        return LogTimes()
    return parse_log(text.splitlines(), began_unix_s, listens_unix_s)


def parse_log(lines: Iterable[str], began_unix_s: float, listens_unix_s: float) -> LogTimes:
    """Return when this start began to load, and the seconds of each logged stage. Lines outside the start's times are
    another process's and are skipped. The slowest of several workers counts."""
    loads_unix_s: float | None = None
    took_s: dict[ColdStage, dict[str, float]] = {}
    compiles_unix_s: dict[str, float] = {}
    for line in lines:
        match = _LINE.match(line)
        at_unix_s = _unix_s(match["at"], began_unix_s) if match is not None else None
        if match is None or at_unix_s is None or not began_unix_s - 1.0 <= at_unix_s <= listens_unix_s + 1.0:
            continue
        if loads_unix_s is None and match["text"].startswith(_BEGINS_TO_LOAD):
            loads_unix_s = at_unix_s
        who = match["who"] or ""
        if match["text"].startswith(_COMPILES):
            compiles_unix_s[who] = at_unix_s
        elif match["text"].startswith(_HAS_COMPILED) and who in compiles_unix_s:
            took_s.setdefault("compile", {})[who] = max(0.0, at_unix_s - compiles_unix_s[who])
        for stage, pattern in _TOOK.items():
            found = pattern.match(match["text"])
            if found is not None:
                by_worker = took_s.setdefault(stage, {})
                by_worker[who] = by_worker.get(who, 0.0) + float(found[1])
    return LogTimes(loads_unix_s, {stage: max(by_worker.values()) for stage, by_worker in took_s.items()})


def _unix_s(text: str, near_unix_s: float) -> float | None:
    """Return the unix time of `11-23 15:34:20` on the machine's clock in the nearest year; None if it is no date."""
    year_near = time.localtime(near_unix_s).tm_year
    times: list[float] = []
    for year in (year_near - 1, year_near, year_near + 1):
        with contextlib.suppress(ValueError, OverflowError):  # 29 February, or not a date
            times.append(time.mktime(time.strptime(f"{year}-{text}", "%Y-%m-%d %H:%M:%S")))
    return min(times, key=lambda at: abs(at - near_unix_s), default=None)
