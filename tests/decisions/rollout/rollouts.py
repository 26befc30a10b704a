"""Rollouts and evidence for tests; each case changes only what it names."""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from functions.api.ids import Digest, ModelId, PoolName
from functions.api.snapshot import RolloutEntry, StageEntry
from functions.decisions.rollout.events import AnyEvent, VersionLoaded
from functions.decisions.rollout.evidence import STREAM_SHARES, GroupStats, TrialEvidence
from functions.decisions.rollout.lifecycle import Rollout, RolloutSpec, new_rollout, transition

POOL = PoolName("base")
BOT = ModelId("acme/bot")
HALTS = ("error_rate > 2%", "p99_latency > 2x")
CAREFUL = RolloutEntry(
    "careful",
    (StageEntry(1, 60.0, HALTS), StageEntry(10, 60.0, HALTS), StageEntry(50, 60.0, HALTS), StageEntry(100)),
    50,
)
AT_ONCE = RolloutEntry("at-once", (StageEntry(100),))


def digest(name: str) -> Digest:
    """Return a digest that is unique to the version name."""
    return Digest("sha256:" + hashlib.sha256(name.encode()).hexdigest())


def spec(
    start: str = "v1",
    end: str = "v2",
    *,
    policy: RolloutEntry = CAREFUL,
    model: str = BOT,
    channel: str = "stable",
    previous: str = "",
    **more: object,
) -> RolloutSpec:
    return RolloutSpec(
        model=ModelId(model),
        channel=channel,
        pool=POOL,
        from_version=start,
        from_digest=digest(start),
        from_artifact_uri=f"s3://x/{start}",
        to_version=end,
        to_digest=digest(end),
        to_artifact_uri=f"s3://x/{end}",
        policy=policy,
        origin=more.get("origin", "git"),  # type: ignore[arg-type]
        previous=previous,
    )


def rollout(*events: AnyEvent, now_unix_s: float = 0.0, **more: object) -> Rollout:
    """Return the rollout after these events, one a second."""
    made = new_rollout(spec(**more), now_unix_s)  # type: ignore[arg-type]
    for seconds, event in enumerate(events, start=1):
        made = transition(made, event, now_unix_s + seconds)
    return made


def running(**more: object) -> Rollout:
    return rollout(VersionLoaded(), **more)


@dataclass
class Traffic:
    """Requests of one version: error ratio and log-normal latency."""

    error_ratio: float = 0.0
    median_ms: float = 200.0
    sigma: float = 0.5
    rng: random.Random = field(default_factory=lambda: random.Random(1))

    def into(self, group: GroupStats, requests: int) -> None:
        for _ in range(requests):
            group.requests += 1
            if self.rng.random() < self.error_ratio:
                group.errors += 1
                continue
            total_ms = self.median_ms * self.rng.lognormvariate(0.0, self.sigma)
            group.ttft_ms.add(total_ms / 4)
            group.inter_token_ms.add(total_ms / 100, STREAM_SHARES)
            group.total_ms.add(total_ms)


def evidence(candidate: Sequence[object], control: Sequence[object], heard_unix_s: float | None = 0.0) -> TrialEvidence:
    """Return evidence; each group is (requests, Traffic)."""
    made = TrialEvidence(heard_unix_s=heard_unix_s)
    for group, (requests, traffic) in ((made.candidate, candidate), (made.control, control)):
        traffic.into(group, requests)  # type: ignore[attr-defined]
    return made
