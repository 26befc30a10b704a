"""Rollouts as plain values, for the control channel and so for people."""

from typing import Any

from functions.controller.rollouts.driver import RolloutDriver
from functions.controller.rollouts.following import RowsFollower
from functions.decisions.rollout.evaluation import Verdict
from functions.decisions.rollout.lifecycle import Rollout
from functions.decisions.rollout.messages import finding_text, rollout_text

SHOWN = 100


def rollouts_in_words(rows: RowsFollower, driver: RolloutDriver, rollouts: tuple[Rollout, ...]) -> dict[str, Any]:
    """`rollouts` are those that are under way or halted, as published last."""
    return {
        "registry": {"change": rows.book.change, "trouble": rows.trouble, "contradiction": rows.contradiction},
        "trouble": driver.trouble,
        "count": len(rollouts),
        "listed": [_shown(row, driver.verdicts.get(row.id)) for row in rollouts[:SHOWN]],
    }


def _shown(row: Rollout, verdict: Verdict | None) -> dict[str, Any]:
    return {
        "id": row.id,
        "model": row.model,
        "channel": row.channel,
        "pool": row.pool,
        "from": row.from_version,
        "to": row.to_version,
        "state": row.state,
        "stage": row.stage,
        "stages": len(row.policy.stages),
        "percent": row.percent,
        "attempt": row.attempt,
        "stage_began_unix_s": row.stage_began_unix_s,
        "words": rollout_text(row),
        "verdict": verdict.reason if verdict is not None else row.reason,
        "conditions": [finding_text(finding) for finding in verdict.findings] if verdict is not None else [],
    }
