"""One rollout in virtual time: requests are split and counted as in a gateway, and judged each second as in the
controller. There are no processes and no clock, but the decisions are the real ones.

Traffic: requests arrive at random (Poisson), belong to sessions of geometric length and fail independently. Durations
are log-normal with a heavy tail, as for a mixed load on a shared engine. A failure takes a tenth of the time of an
answer, so failures are counted first, as in production.
"""

import heapq
import random
from dataclasses import dataclass, field

from functions.api.ids import Digest, EngineName, ModelId, PoolName, TenantId
from functions.api.snapshot import RolloutEntry, StageEntry
from functions.decisions.catalogue import ResolvedModel, Split
from functions.decisions.catalogue_policies import DEFAULT_ROLLOUT
from functions.decisions.rollout.evaluation import Residency, evaluate
from functions.decisions.rollout.events import Breached, StagePassed, VersionLoaded
from functions.decisions.rollout.evidence import STREAM_SHARES, GroupStats, TrialEvidence
from functions.decisions.rollout.lifecycle import Rollout, RolloutSpec, new_rollout, transition
from functions.decisions.rollout.split import Group, choose

TENANT = TenantId("acme")
MEAN_SESSION = 5  # requests


def policy(stage_s: float, min_requests: int = 50, false_alarm_ratio: float = 0.01) -> RolloutEntry:
    """Return the built-in stages and conditions, with stages of `stage_s`."""
    stages = tuple(
        StageEntry(stage.percent, stage_s if stage.duration_s is not None else None, stage.auto_halt)
        for stage in DEFAULT_ROLLOUT.stages
    )
    return RolloutEntry("virtual", stages, min_requests, false_alarm_ratio=false_alarm_ratio)


@dataclass(frozen=True)
class Behaviour:
    error_ratio: float = 0.005
    median_ms: float = 800.0
    sigma: float = 0.7
    slower: float = 1.0  # factor on every duration


@dataclass
class Outcome:
    state: str
    stage: int
    reason: str
    seconds: float
    saw_it: int  # requests that the candidate served
    requests: int


@dataclass
class VirtualRollout:
    """One rollout of one channel, and the requests to it."""

    rng: random.Random
    policy: RolloutEntry
    control: Behaviour
    candidate: Behaviour
    requests_per_s: float
    now_s: float = 0.0
    saw_it: int = 0
    requests: int = 0
    _open: list[tuple[float, int, Group, int, bool, float]] = field(default_factory=list)
    _sessions: list[str] = field(default_factory=list)
    _pins: dict[str, Group] = field(default_factory=dict)
    _trials: dict[int, TrialEvidence] = field(default_factory=dict)

    def run(self, at_most_s: float) -> Outcome:
        row = transition(new_rollout(_spec(self.policy, self.rng), 0.0), VersionLoaded(), 0.0)
        while row.state == "running" and self.now_s < at_most_s:
            self._second(row)
            evidence = self._trials.setdefault(row.trial, TrialEvidence())
            evidence.heard_unix_s = self.now_s
            event = evaluate(row, evidence, Residency(), self.now_s).event
            if isinstance(event, Breached | StagePassed):
                row = transition(row, event, self.now_s)
        return Outcome(row.state, row.stage, row.reason, self.now_s, self.saw_it, self.requests)

    def _second(self, row: Rollout) -> None:
        split = Split(row.id, row.trial, row.percent, row.policy.sticky, _CANDIDATE, row.model)
        for _ in range(_poisson(self.rng, self.requests_per_s)):
            self._arrive(split, self.now_s + self.rng.random())
        self.now_s += 1.0
        while self._open and self._open[0][0] <= self.now_s:
            _, _, group, trial, failed, took_ms = heapq.heappop(self._open)
            _count(self._group(trial, group), failed, took_ms)

    def _arrive(self, split: Split, at_s: float) -> None:
        if not self._sessions or self.rng.random() < 1 / MEAN_SESSION:
            self._sessions.append(f"{self.rng.random()}")
            if len(self._sessions) > 200:
                self._pins.pop(self._sessions.pop(0), None)
        session = self.rng.choice(self._sessions)
        choice = choose(split, TENANT, session, "", self._pins.get(session))
        if choice.pin:
            self._pins[session] = choice.group
        behaviour = self.candidate if choice.group == "candidate" else self.control
        failed = self.rng.random() < behaviour.error_ratio
        took_ms = behaviour.median_ms * behaviour.slower * self.rng.lognormvariate(0.0, behaviour.sigma)
        took_ms *= 0.1 if failed else 1.0
        self.requests += 1
        self.saw_it += choice.group == "candidate"
        heapq.heappush(self._open, (at_s + took_ms / 1000, self.requests, choice.group, split.stage, failed, took_ms))

    def _group(self, trial: int, group: Group) -> GroupStats:
        evidence = self._trials.setdefault(trial, TrialEvidence())
        return evidence.candidate if group == "candidate" else evidence.control


def _count(group: GroupStats, failed: bool, took_ms: float) -> None:
    group.requests += 1
    group.errors += failed
    if not failed:
        group.total_ms.add(took_ms)
        group.ttft_ms.add(took_ms / 5)
        group.inter_token_ms.add(took_ms / 100, STREAM_SHARES)


def _poisson(rng: random.Random, mean: float) -> int:
    """Draw a Poisson number; above a mean of 30 by a normal approximation, which is enough for traffic."""
    if mean > 30:
        return max(0, round(rng.gauss(mean, mean**0.5)))
    count, passed = 0, rng.expovariate(1.0)
    while passed < mean:
        count += 1
        passed += rng.expovariate(1.0)
    return count


_CANDIDATE = ResolvedModel(
    requested="acme/bot",
    id=ModelId("acme/bot"),
    version="v2",
    digest=Digest("sha256:" + "2" * 64),
    engine_name=EngineName("acme/bot@2"),
    pool=PoolName("base"),
    is_adapter=True,
    context_window_tokens=2048,
)


def _spec(policy: RolloutEntry, rng: random.Random) -> RolloutSpec:
    """Return a spec with random digests, so that each rollout moves other sessions first."""
    digests = [Digest("sha256:" + f"{rng.getrandbits(256):064x}") for _ in range(2)]
    model, pool = ModelId("acme/bot"), PoolName("base")
    return RolloutSpec(model, "stable", pool, "v1", digests[0], "s3://x/1", "v2", digests[1], "s3://x/2", policy, "git")
