"""Requests to engines, response headers to clients, and the error answer for each kind of failure."""

import re
import zlib

import orjson

from functions.api.netloc import netloc
from functions.decisions.admission.bands import engine_priority
from functions.decisions.admission.drain_rate import retry_after_s
from functions.decisions.routing.choice import NoReplica, ReplicaView
from functions.decisions.routing.retry import AttemptFailure
from functions.gateway import errors
from functions.gateway.errors import ErrorAnswer, OverQuota, RequestRejected
from functions.gateway.http.sink import Headers, MoreHeaders, Sink
from functions.gateway.intake.fields import ignored_header
from functions.gateway.intake.routes import Route
from functions.gateway.metrics import Metrics
from functions.gateway.request.answers import Renaming, engine_error
from functions.gateway.request.dialects import OPENAI, Dialect
from functions.gateway.request.request import Admitted, Timeline
from functions.gateway.routing.adapter_loads import ColdFailed

_RETRY_AFTER_MAX_S = 4
_COMMAND_LINE_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9]+(?:-[a-z0-9]+)*")


def upstream_request(admitted: Admitted, replica: ReplicaView, now_unix_s: float) -> bytes:
    """Return the HTTP request for the engine, with headers of the gateway only. The lowest priority runs first."""
    return (
        b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\nx-request-id: %b\r\n"
        b"traceparent: %b\r\n"
        b"x-vllm-priority: %d\r\ncontent-length: %d\r\n\r\n%b"
        % (
            admitted.route.upstream_path,
            netloc(replica.host, replica.port).encode(),
            admitted.request_id.encode(),
            admitted.trace.traceparent,
            engine_priority(admitted.service_class, int(now_unix_s * 1000)),
            len(admitted.upstream_body),
            admitted.upstream_body,
        )
    )


def headers(
    admitted: Admitted, replica: ReplicaView | None, timeline: Timeline, content_type: bytes, more: MoreHeaders = ()
) -> Headers:
    """Return the headers of an answer. Every value is the gateway's own or was validated, none is the engine's."""
    model = admitted.model
    served_as, digest = model.served_as, model.digest
    weights = replica.weights if replica is not None else None
    if weights is not None and weights != digest and not model.is_adapter:  # inlined, because calls are expensive here
        version, digest = model.as_loaded(weights)
        served_as = f"{model.id}@{version}"
    return [
        (b"content-type", content_type),
        (b"x-request-id", admitted.request_id.encode()),
        (b"x-shoal-model", served_as.encode()),
        (b"x-shoal-digest", digest.encode()),
        (b"x-shoal-replica", replica.id.encode() if replica is not None else b""),
        (b"server-timing", timeline.server_timing()),
        (b"cache-control", b"no-store"),
        *more,
    ]


def more_headers(admitted: Admitted, quota: MoreHeaders) -> MoreHeaders:
    """Return more headers of an admitted request's answer: trace, dropped turns and fields, rollout, quota."""
    quota = ((b"traceresponse", admitted.trace.traceparent), *quota)
    if admitted.slid_turns:
        quota = ((b"x-shoal-context", b"slid=%d" % admitted.slid_turns), *quota)
    if admitted.ignored_fields:
        quota = ((b"x-shoal-ignored", ignored_header(admitted.ignored_fields)), *quota)
    return quota if admitted.split is None else ((b"x-shoal-rollout", admitted.split.header()), *quota)


def error_headers(request_id: str, answer: ErrorAnswer, more: MoreHeaders = ()) -> Headers:
    found = [(b"content-type", b"application/json"), (b"x-request-id", request_id.encode()), *more]
    if answer.retry_after_s is not None:
        found.append((b"retry-after", b"%d" % answer.retry_after_s))
    if answer.status == 401:
        found.append((b"www-authenticate", b"Bearer"))
    return found


def refuse(
    metrics: Metrics,
    sink: Sink,
    request_id: str,
    answer: ErrorAnswer,
    *,
    more: MoreHeaders = (),
    dialect: Dialect = OPENAI,
) -> None:
    """Count a request that was not admitted, and send it the whole error answer."""
    metrics.refused(answer.status)
    sink.whole(answer.status, error_headers(request_id, answer, more), dialect.error_body(answer, request_id))


def turn_away(
    metrics: Metrics, sink: Sink, route: Route, request_id: str, refused: RequestRejected, *, more: MoreHeaders = ()
) -> None:
    """Count a rejection and send it in the dialect of the route, with headers of the tenant's limits."""
    if isinstance(refused, OverQuota):
        metrics.quota_rejected(refused.dimension)
        more = more or refused.headers
    refuse(metrics, sink, request_id, refused.answer, more=more, dialect=route.dialect)


def no_replica(decision: NoReplica, failures: tuple[AttemptFailure, ...], admitted: Admitted) -> ErrorAnswer:
    """Return the error if no replica can serve the request for another reason than a missing adapter."""
    if decision.reason == "told_to_wait":
        after_s = max(retry_after_s(decision.after_s, admitted.request_id), _retry_after_s(admitted))
        message = f"The engines of the pool {admitted.model.pool} are full. Try again in {after_s} s."
        return errors.unavailable(message, "overloaded", after_s)
    if failures:
        return all_failed(failures, False, admitted)
    if decision.reason == "weights_not_loaded":
        message = f"No replica of the pool {admitted.model.pool} has the weights of {admitted.model.served_as} loaded."
        return errors.unavailable(f"{message} Try again shortly.", "model_not_ready", _retry_after_s(admitted))
    message = f"The pool {admitted.model.pool} has no replica ready. Try again shortly."
    return errors.unavailable(message, "no_capacity", _retry_after_s(admitted))


def all_failed(failures: tuple[AttemptFailure, ...], past_deadline: bool, admitted: Admitted) -> ErrorAnswer:
    if past_deadline:
        return errors.deadline_exceeded("The deadline passed before a replica answered.")
    last = failures[-1]
    if last is AttemptFailure.OVERLOADED:
        return errors.unavailable("Every replica is full. Try again shortly.", "overloaded", _retry_after_s(admitted))
    if last is AttemptFailure.ADAPTER_MISSING:
        message = f"{admitted.model.served_as} is being loaded. Try again shortly."
        return errors.unavailable(message, "model_not_ready", _retry_after_s(admitted))
    if last is AttemptFailure.FIRST_BYTE:
        return errors.deadline_exceeded("No replica began to answer in time. Try again.")
    tries = "replica" if len(failures) == 1 else f"{len(failures)} replicas"
    return errors.bad_gateway(f"The {tries} tried for this request failed ({last.value}). Send it again.")


def not_loaded(failed: ColdFailed, admitted: Admitted) -> ErrorAnswer:
    """Return the 503 that says why a requested adapter was not loaded and when to retry, if that helps."""
    model, retry_after_s = admitted.model.served_as, _retry_after_s(admitted)
    if failed.outcome == "refused":
        why = f": {failed.reason}" if failed.reason else ""
        message = f"{model} cannot be loaded{why}. Use another version, or publish a corrected one."
        return errors.unavailable(message, "model_unavailable", None)
    if failed.outcome == "no_room":
        message = f"{model} is not loaded: the adapter slots of all replicas are in use. Try again shortly."
        return errors.unavailable(message, "overloaded", retry_after_s)
    if failed.outcome == "too_many":
        message = f"{model} is being loaded, and the limit on requests that wait for it is reached. Try again shortly."
        return errors.unavailable(message, "overloaded", retry_after_s)
    if failed.outcome == "held_back":
        message = (
            f"{model} is not loaded. Its pool {admitted.model.pool} is overloaded and loads one adapter at a time. "
            "Try again shortly."
        )
        return errors.unavailable(message, "overloaded", retry_after_s)
    if failed.outcome == "slow":
        return errors.unavailable(f"{model} is being loaded. Try again shortly.", "model_not_ready", retry_after_s)
    message = f"{model} is not loaded on any replica, and no replica could load it. Try again shortly."
    return errors.unavailable(message, "model_not_ready", retry_after_s)


def engine_refusal(status: int, body: bytes, renaming: Renaming) -> ErrorAnswer | AttemptFailure:
    """Return an error answer if the engine's status means a mistake of the caller, else the failure of the attempt."""
    if status in (400, 413, 422):
        message, param = engine_error(renaming.rename_text(body))
        if _COMMAND_LINE_OPTION.search(message):
            return _not_set_up(message, param)
        code = "context_length_exceeded" if "context length" in message else "invalid_request"
        return ErrorAnswer(
            400, "invalid_request_error", code, message or "The engine rejected the request without a reason.", param
        )
    if status in (404, 405, 501) and _lacks_route(status, body):
        message = "This model does not support this route. Use /v1/chat/completions, or ask the operator to enable it."
        return ErrorAnswer(400, "invalid_request_error", "route_not_offered", message)
    if status == 404:
        return AttemptFailure.ADAPTER_MISSING
    if status in (429, 503):
        return AttemptFailure.OVERLOADED
    return AttemptFailure.ENGINE_ERROR


def _not_set_up(message: str, param: str | None) -> ErrorAnswer:
    """Return the 400 for a feature that the engine lacks, without the command-line options that its message names."""
    if "tool choice" in message or "tool_choice" in message:
        text = (
            "This model does not support tool calls. Omit `tools`, send `tool_choice: none`, or ask the "
            "operator for a model that supports them."
        )
        return ErrorAnswer(400, "invalid_request_error", "tools_not_offered", text, "tools")
    named = f" (`{param}`)" if param else ""
    text = (
        f"The request uses a feature that is not enabled for this model{named}. "
        "Omit it, or ask the operator to enable it."
    )
    return ErrorAnswer(400, "invalid_request_error", "not_offered", text, param)


def _lacks_route(status: int, body: bytes) -> bool:
    """Return True if the engine or its model lacks the route. An unknown model gets 404 too, with a message."""
    return status != 404 or engine_error(body)[0] == "Not Found" or body == b'{"detail":"Not Found"}'


def status_in_error(error_body: bytes) -> int:
    """Return the HTTP status in an engine's error event, or 500 if it has none from 400 to 599."""
    try:
        code = orjson.loads(error_body)["error"]["code"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return 500
    return code if type(code) is int and 400 <= code <= 599 else 500


def _retry_after_s(admitted: Admitted) -> int:
    """Return 1 to _RETRY_AFTER_MAX_S seconds by request id, so that callers do not all retry at the same time."""
    return 1 + zlib.crc32(admitted.request_id.encode()) % _RETRY_AFTER_MAX_S
