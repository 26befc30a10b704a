"""How rollouts look on the wire: the row as it is, with what a reader would compute from it. Plain values, no I/O."""

from typing import Any

import msgspec

from functions.decisions.rollout import evidence as rollout_evidence
from functions.decisions.rollout.evidence import Evidence, GroupStats
from functions.decisions.rollout.lifecycle import Rollout

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def described_rollout(rollout: Rollout) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(rollout)
    return row | {"object": "rollout", "active": rollout.is_active, "percent": rollout.percent}


def described_evidence(evidence: Evidence) -> dict[str, Any]:
    """Both groups twice: the sketches for programs (`evidence`), a few figures for people (`groups`)."""
    return {
        "evidence": rollout_evidence.to_builtins(evidence),
        "groups": {"candidate": _figures(evidence.candidate), "control": _figures(evidence.control)},
    }


def _figures(group: GroupStats) -> dict[str, Any]:
    return {
        "requests": group.requests,
        "errors": group.errors,
        "error_ratio": group.error_ratio,
        **{
            name: {label: getattr(group, name).quantile(q) for label, q in _QUANTILES.items()}
            for name in ("ttft_ms", "inter_token_ms", "total_ms")
        },
    }
