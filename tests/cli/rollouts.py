"""Rollouts in the registry's response format, for the commands that show them."""

from typing import Any

import msgspec

from functions.api.snapshot import RolloutEntry, StageEntry
from functions.decisions.rollout.evidence import STREAM_SHARES, GroupStats, TrialEvidence, to_builtins
from functions.decisions.rollout.lifecycle import Rollout

NOW_UNIX_S = 10_000.0
HALTS = ("error_rate > 2%", "p99_latency > 2x")
POLICY = RolloutEntry(
    name="default",
    stages=(StageEntry(1, 300.0, HALTS), StageEntry(10, 900.0, HALTS), StageEntry(100)),
    min_requests=50,
)


def rollout(**changes: Any) -> Rollout:
    base: dict[str, Any] = {
        "id": "ro-abcdefgh",
        "model": "acme/bot",
        "channel": "stable",
        "pool": "base",
        "from_version": "v1",
        "from_digest": "sha256:" + "1" * 64,
        "from_artifact_uri": "s3://models/acme/bot/v1",
        "to_version": "v2",
        "to_digest": "sha256:" + "2" * 64,
        "to_artifact_uri": "s3://models/acme/bot/v2",
        "policy": POLICY,
        "origin": "api",
        "state": "running",
        "stage": 0,
        "loaded": True,
        "stage_began_unix_s": NOW_UNIX_S - 100,
        "created_unix_s": NOW_UNIX_S - 200,
    }
    return Rollout(**{**base, **changes})


def group(requests: int, errors: int, total_ms: float) -> GroupStats:
    stats = GroupStats(requests, errors)
    for _ in range(requests - errors):
        stats.ttft_ms.add(total_ms / 10)
        stats.inter_token_ms.add(total_ms / 100, STREAM_SHARES)
        stats.total_ms.add(total_ms)
    return stats


def answer(it: Rollout, evidence: TrialEvidence | None = None) -> dict[str, Any]:
    """Return a response of GET /v1/rollouts/{id}, with fields that the commands do not know."""
    known: dict[str, Any] = msgspec.to_builtins(it)
    return known | {"object": "rollout", "evidence": to_builtins(evidence or TrialEvidence()), "events": []}
