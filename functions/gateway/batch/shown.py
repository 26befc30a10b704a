"""A batch as OpenAI has it."""

from typing import Any

from functions.decisions.batch.record import BatchRecord, LineProblem, Status, Tally
from functions.gateway.batch.log import Beat

_STAMPED: tuple[Status, ...] = (
    "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled",
)  # fmt: skip


def shown(record: BatchRecord, beat: Beat | None = None) -> dict[str, Any]:
    """`beat`: how far it is, while it is not over."""
    tally = record.tally if record.is_over or beat is None else beat.tally
    return {
        "id": record.id,
        "object": "batch",
        "endpoint": record.endpoint,
        "input_file_id": record.input_file_id,
        "completion_window": record.completion_window,
        "status": record.status,
        "errors": {"object": "list", "data": [_problem(one) for one in record.errors]} if record.errors else None,
        "output_file_id": record.output_file_id if record.has_output else None,
        "error_file_id": record.error_file_id if record.has_errors else None,
        "created_at": record.created_s,
        "expires_at": record.expires_s,
        **{f"{status}_at": record.stamps.get(status) for status in _STAMPED},
        "request_counts": {"total": record.lines, "completed": tally.completed, "failed": tally.failed},
        "usage": _usage(tally),
        "metadata": record.metadata or None,
    }


def _problem(problem: LineProblem) -> dict[str, Any]:
    return {"code": problem.code, "message": problem.message, "param": problem.param, "line": problem.line}


def _usage(tally: Tally) -> dict[str, Any]:
    return {
        "input_tokens": tally.prompt_tokens,
        "input_tokens_details": {"cached_tokens": tally.cached_tokens},
        "output_tokens": tally.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},  # engines count them with the others
        "total_tokens": tally.prompt_tokens + tally.completion_tokens,
    }
