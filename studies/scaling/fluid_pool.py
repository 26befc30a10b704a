"""Fluid model of a pool: work arrives each second, every ready replica does 0.82 s of it, and the rest waits.

    interactive   served first; waits `left over / ready replicas`; in time if that is at most `slack_s`; work
                  that would wait longer than `most_wait_s` is rejected, as in the gateway's admission queue
    batch         uses the rest of each second, the oldest first; in time if it begins within `later_slack_s`
    in flight     the requests that wait and those in engines, which grow as 1 / (1 - utilization)

The model has no routing, prompt lengths or batching, and simulates a day in seconds: for choosing, and for many days.
`simulator.fleet` simulates hours request by request; `docs/explanation/autoscaling.md` compares both. 0.82: above
this share of its capacity, an engine's first tokens are late under any routing, since its steps grow as 1 / (1 -
share). Measured request by request on 40 replicas (`docs/explanation/autoscaling.md`). Replicas are ready `startup_s`
after the request, and cost from then on; a removed one costs for `drain_s`. Worked example
(test_worked_example_of_the_basin): 10 replicas, 10.2 s of work a second for 5 s: 10 s are left over, and the next
request waits 10 / 8.2 = 1.2 s.

Neighbours: `load` makes the arriving work, `scaler` sets the replicas, `day_outcome` sums up.
"""

from collections import deque
from dataclasses import dataclass

from functions.decisions.autoscaling.signals import PoolSignals
from studies.scaling.day_outcome import DayOutcome
from studies.scaling.load import Load
from studies.scaling.scaler import Scaler

PERIOD_S = 15
_LEAST_WORK_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Basin:
    """Constant input of a run."""

    startup_s: int = 300
    drain_s: int = 20
    full_ratio: float = 0.82  # share of its work that a replica can do with first tokens in time
    slack_s: float = 1.0
    most_wait_s: float = 10.0
    later_slack_s: float = 600.0
    service_s: float = 5.0  # time of a request in an otherwise idle engine


class FluidPool:
    def __init__(self, basin: Basin, load: Load, replicas: int) -> None:
        self._basin = basin
        self._soon, self._later = load.soon.T.tolist(), load.later.T.tolist()
        self._ready = replicas
        self._starting: deque[int] = deque()  # seconds at which they are ready
        self._draining: deque[int] = deque()  # seconds at which they are gone
        self._left_s = 0.0
        self._jobs: deque[list[float]] = deque()  # second, requests, work that is left
        self.outcome = DayOutcome()
        self.under_way = 0.0

    def run(self, scaler: Scaler) -> DayOutcome:
        seconds = len(self._soon)
        for begins_s in range(0, seconds, PERIOD_S):
            ends_s = min(seconds, begins_s + PERIOD_S)
            worst_s = max(self._second(second) for second in range(begins_s, ends_s))
            signals = self._signals(begins_s, ends_s)
            self.outcome.note(self._ready + len(self._starting) + len(self._draining), signals, worst_s)
            self._scale(scaler.decide_replicas(signals, float(ends_s)), ends_s)
        return self.outcome

    def _second(self, now_s: int) -> float:
        while self._starting and self._starting[0] <= now_s:
            self._starting.popleft()
            self._ready += 1
        while self._draining and self._draining[0] <= now_s:
            self._draining.popleft()
        outcome, able = self.outcome, self._able
        requests, _, work = self._soon[now_s]
        outcome.replica_s += self._ready + len(self._starting) + len(self._draining)
        outcome.work_s += work + self._later[now_s][2]
        outcome.asked += requests
        spare_s = able - self._left_s - work
        left_s = max(0.0, -spare_s)
        too_much_s = max(0.0, left_s - self._basin.most_wait_s * able)
        self._left_s = left_s - too_much_s
        refused = min(requests, requests * too_much_s / work) if work > 0.0 else 0.0
        outcome.refused += refused
        wait_s = self._left_s / able
        if wait_s <= self._basin.slack_s:
            outcome.in_time += requests - refused
        self._serve_jobs(now_s, max(0.0, spare_s))
        return wait_s

    @property
    def _able(self) -> float:
        """Engine seconds of work that can be done in a second."""
        return max(1, self._ready) * self._basin.full_ratio

    def _serve_jobs(self, now_s: int, spare_s: float) -> None:
        requests, _, work = self._later[now_s]
        self.outcome.later_asked += requests
        if requests:
            self._jobs.append([float(now_s), requests, max(work, _LEAST_WORK_S)])
        while self._jobs and spare_s > 0.0:
            begun_s, count, left_s = self._jobs[0]
            done_s = min(left_s, spare_s)
            spare_s -= done_s
            served = count * done_s / left_s
            if now_s - begun_s <= self._basin.later_slack_s:
                self.outcome.later_in_time += served
            if done_s >= left_s - _LEAST_WORK_S:
                self._jobs.popleft()
            else:
                self._jobs[0][1:] = [count - served, left_s - done_s]

    def _signals(self, begins_s: int, ends_s: int) -> PoolSignals:
        seconds, ready = ends_s - begins_s, max(1, self._ready)
        soon = [sum(column) / seconds for column in zip(*self._soon[begins_s:ends_s], strict=True)]
        later = [sum(column) / seconds for column in zip(*self._later[begins_s:ends_s], strict=True)]
        requests, work = soon[0] + later[0], soon[2] + later[2]
        utilization = min(1.0, work / ready)
        self.under_way = requests * self._basin.service_s / max(0.05, 1.0 - utilization)
        self.under_way += self._left_s * requests / work if work else 0.0
        wait_s = self._left_s / self._able
        return PoolSignals(
            at_s=float(ends_s),
            ready=self._ready,
            starting=len(self._starting),
            draining=len(self._draining),
            arrivals_per_s=requests,
            arriving_tokens_per_s=soon[1] + later[1],
            deferrable_tokens_per_s=later[1],
            queue_seconds=wait_s,
            ttft_p50_s=wait_s,
            ttft_p99_s=wait_s,
            kv_usage_ratio=utilization / 2,
            utilization_ratio=utilization,
        )

    def _scale(self, desired: int, now_s: int) -> None:
        there = self._ready + len(self._starting)
        if desired > there:
            self._starting.extend([now_s + self._basin.startup_s] * (desired - there))
        self.outcome.scaled(desired - there)
        for _ in range(there - desired):
            if self._starting:
                self._starting.pop()
            elif self._ready > 1:
                self._ready -= 1
                self._draining.append(now_s + self._basin.drain_s)
