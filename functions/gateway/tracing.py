"""Trace of a request that has ended: its metadata, never its content, and the row that is made of it.

Making a row takes 10 us, a third of the gateway's whole budget for a request. So the loop only stores references to
small, immutable objects (never the body), and the writing thread makes the row if it is needed.

Neighbours: `functions.telemetry.trace_row` has the columns; `offer` is the last listener of a request's `Ended`.
"""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from functions.api.snapshot import ServiceClass
from functions.decisions.catalogue import ResolvedModel
from functions.decisions.request.access import Caller
from functions.decisions.routing.choice import Prediction
from functions.decisions.routing.retry import AttemptFailure
from functions.decisions.routing.sessions import session_hash
from functions.gateway.http.headers import TraceContext
from functions.gateway.request.answers import Usage
from functions.gateway.request.request import Ended, Spent, Timeline
from functions.telemetry.gap_histogram import Gaps
from functions.telemetry.trace_row import TraceRow
from functions.telemetry.trace_sink import TraceSink

_WHY = re.compile(rb'"(?:finish|stop)_reason":"([a-z_]{1,32})"')


def offer(traces: TraceSink, wall_clock: Callable[[], float], ended: Ended) -> None:
    admitted = ended.admitted
    traces.offer(
        TracedRequest(
            admitted.request_id,
            admitted.trace,
            admitted.session,
            admitted.caller,
            admitted.model,
            admitted.service_class,
            admitted.stream,
            ended.timeline,
            ended.usage,
            ended.failures,
            ended.attempts,
            ended.snapshot_epoch,
            ended.status,
            ended.code,
            ended.spent,
            wall_clock(),
            ended.prediction,
            ended.gaps,
            ended.tokens,
            ended.last,
            ended.cascade.notes if ended.cascade is not None else None,
            ended.degraded_from,
            ended.split,
        )
    )


class TracedRequest(msgspec.Struct, gc=False):
    """The raw material of one row."""

    request_id: str
    trace: TraceContext
    session: str | None
    caller: Caller
    model: ResolvedModel
    service_class: ServiceClass
    stream: bool
    timeline: Timeline
    usage: Usage | None
    failures: tuple[AttemptFailure, ...]
    attempts: int
    snapshot_epoch: int
    status: int
    code: str
    spent: Spent
    now_unix_s: float
    prediction: Prediction | None
    gaps: Gaps | None
    tokens: int  # tokens of its stream
    last: tuple[bytes, ...]  # the last bytes from the engine, at most a few KB
    cascade: dict[str, Any] | None
    degraded_from: str
    split: dict[str, Any] | None = None

    def row(self) -> TraceRow:
        timeline, model, caller, prediction, gaps = self.timeline, self.model, self.caller, self.prediction, self.gaps
        usage = self.usage
        version, digest = model.version, model.digest
        if prediction is not None:
            version, digest = model.as_loaded(prediction.replica.weights)
        total_s = timeline.ended_s - timeline.received_s
        return TraceRow(
            ts=round(self.now_unix_s - total_s, 6),
            request_id=self.request_id,
            trace_id=self.trace.trace_id,
            span_id=self.trace.span_id,
            parent_span_id=self.trace.parent_span_id,
            tenant_id=caller.tenant,
            key_id=caller.key_id,
            model_id=model.id,
            version=version,
            artifact_digest=digest,
            base_model=model.pool,
            adapter_id=model.engine_name if model.is_adapter else "",
            pool=model.pool,
            replica_id=prediction.replica.id if prediction is not None else "",
            session_id=session_hash(caller.tenant, self.session).hex() if self.session is not None else "",
            class_=self.service_class,
            stream=self.stream,
            attempt_count=self.attempts,
            route_reason=prediction.reason if prediction is not None else "",
            route_score=self._score(),
            snapshot_epoch=self.snapshot_epoch,
            prompt_tokens=usage.prompt_tokens if usage is not None else None,
            cached_tokens=usage.cached_tokens if usage is not None else None,
            completion_tokens=usage.completion_tokens if usage is not None else None,
            auth_ms=_ms(timeline.received_s, timeline.admitted_s) or 0.0,
            queue_ms=round((timeline.queued_s + timeline.load_s) * 1000, 3),
            route_ms=_ms(timeline.admitted_s, timeline.routed_s - timeline.queued_s - timeline.load_s),
            connect_ms=_ms(timeline.routed_s, timeline.connected_s),
            prefill_ms=_ms(timeline.connected_s, timeline.first_token_s),
            first_token_ms=_ms(timeline.received_s, timeline.first_token_s),
            inter_token_p50_ms=gaps.quantile_ms(0.5) if gaps is not None else None,
            inter_token_p99_ms=gaps.quantile_ms(0.99) if gaps is not None else None,
            decode_tokens=self.tokens,
            total_ms=round(total_s * 1000, 3),
            kv_token_seconds=round(self.spent.kv_token_seconds, 3),
            gpu_seconds=round(self.spent.gpu_seconds, 6),
            status=self.status,
            finish_reason=self._finish_reason(),
            degraded_from=self.degraded_from,
            error=self._error(),
        )

    def _score(self) -> dict[str, Any]:
        score: dict[str, Any] = dict(self.prediction.explain()) if self.prediction is not None else {}
        if self.split is not None:
            score["prefill"] = self.split
        return score if self.cascade is None else score | {"cascade": self.cascade}

    def _finish_reason(self) -> str:
        """Return the last finish reason in the engine's last bytes, or empty text if there is none."""
        said = _WHY.findall(b"".join(self.last))
        return said[-1].decode() if said else ""

    def _error(self) -> str:
        failures = ",".join(failure.value for failure in self.failures)
        return f"{self.code} ({failures})" if self.code and failures else self.code or failures


def _ms(start_s: float, end_s: float) -> float | None:
    """Return the milliseconds between two times in seconds, at least 0, or None if one of them is unset (0)."""
    return round(max(0.0, end_s - start_s) * 1000, 3) if start_s > 0.0 and end_s > 0.0 else None
