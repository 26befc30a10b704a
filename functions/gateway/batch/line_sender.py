"""One line of a batch as an ordinary request: admitted, counted, queued, routed, traced, and resent after a 429 or
503.

It is sent in the name of the key that made the batch, in the batch class regardless of its body, and never
streams.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from functions.decisions.batch.lines import Line
from functions.decisions.batch.pace import BatchPace, judge
from functions.decisions.batch.parts import LineResult
from functions.gateway import errors
from functions.gateway.batch.pacer import LinePacer
from functions.gateway.batch.shared import BatchMetrics
from functions.gateway.chat.composition.gathering import Gathered
from functions.gateway.http.sink import Headers
from functions.gateway.intake.routes import Route
from functions.gateway.services import RequestHandler

_log = logging.getLogger(__name__)
_DURATION = re.compile(rb"([0-9.]+)(ms|s|m|h)")
_UNIT_S = {b"ms": 0.001, b"s": 1.0, b"m": 60.0, b"h": 3600.0}
_HOST = b"batch.shoal.internal"  # requests need a host; this one is never resolved


@dataclass(frozen=True, slots=True)
class LineRequest:
    """A waiting line. The body is bytes, because a parsed body of small numbers takes ten times as much memory."""

    ordinal: int
    custom_id: str
    body: bytes


@dataclass(slots=True)
class LineSender:
    clock: Callable[[], float]
    handle: RequestHandler
    route: Route
    batch_id: str
    claim: int  # number of claims; a later owner may send a line again
    credential: str
    pace: BatchPace
    pacer: LinePacer
    metrics: BatchMetrics
    uniform: Callable[[], float]

    async def send_until_done(self, line: LineRequest) -> LineResult:
        """Send a line until it has a result, and return it; an unexpected exception is logged and gives a 500 result.

        Cancellation aborts the engine's request immediately.
        """
        try:
            return await self._send_until_done(line)
        except Exception:
            _log.exception("batch %s failed on its line %d", self.batch_id, line.ordinal + 1)
            failed = Gathered()
            failed.status, failed.body = 500, errors.internal_error().body()
            return self._result(line, f"{self.batch_id}.{line.ordinal + 1}", failed)

    async def _send_until_done(self, line: LineRequest) -> LineResult:
        failures = asked = 0
        while True:
            asked += 1
            request_id = f"{self.batch_id}.{line.ordinal + 1}.{self.claim}.{asked}"
            async with self.pacer.next_turn():
                answer = await self._send_once(request_id, line.body)
                self.pacer.record_answer_size(len(answer.body))
            now_s = self.clock()
            self._apply_limits(answer.headers, now_s)
            verdict = judge(answer.status, _retry_after_s(answer.headers), failures + 1, self.uniform())
            if verdict == "done":
                self.pace.answered()
                return self._result(line, request_id, answer)
            self.metrics.count_retry()
            if verdict.told:
                self.pace.slow_down(answer.status, verdict.after_s, now_s)
            else:
                failures += 1
            await asyncio.sleep(verdict.after_s)

    async def _send_once(self, request_id: str, body: bytes) -> Gathered:
        headers = [
            (b"host", _HOST),
            (b"content-type", b"application/json"),
            (b"authorization", self.credential.encode()),
            (b"x-shoal-class", b"batch"),
            (b"x-request-id", request_id.encode()),
        ]
        sink = Gathered()
        answering = self.handle(self.route, headers, body, sink, self.clock())
        try:
            await sink.ended()
        finally:
            if answering is not None:
                answering.client_left()  # no effect after the end
        return sink

    def _apply_limits(self, headers: Headers, now_s: float) -> None:
        """Update the pace from an answer's `x-ratelimit-` headers, so that a part is left to the tenant's own calls.

        A limit of which any header is missing is ignored.
        """
        said = dict(headers)
        for what in (b"requests", b"tokens"):
            limit, left, reset = (
                said.get(b"x-ratelimit-" + name + what) for name in (b"limit-", b"remaining-", b"reset-")
            )
            if limit is not None and left is not None and reset is not None:
                self.pace.keep_headroom(float(limit), float(left), seconds_of(reset), now_s)

    def _result(self, line: LineRequest, request_id: str, answer: Gathered) -> LineResult:
        status = answer.status or errors.upstream_lost().status
        body = _object(answer.body) or orjson.loads(errors.upstream_lost().body())
        self.metrics.count_line("completed" if status == 200 else "failed")
        text = result_text(self.batch_id, line, {"status_code": status, "request_id": request_id, "body": body}, None)
        return LineResult(line.ordinal, status == 200, text, *_usage(body))


def result_text(
    batch_id: str, line: Line | LineRequest, response: dict[str, Any] | None, error: dict[str, str] | None
) -> bytes:
    """Return a line of an output or error file as JSON, without a newline."""
    named = {"id": f"{batch_id.replace('batch_', 'batch_req_')}_{line.ordinal + 1}", "custom_id": line.custom_id}
    return orjson.dumps({**named, "response": response, "error": error})


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return parsed if isinstance(parsed, dict) else None


def _usage(body: dict[str, Any]) -> tuple[int, int, int]:
    """Return an answer's prompt, cached and completion tokens, in either API's spelling; 0 for what is missing."""
    usage = body.get("usage")
    if not isinstance(usage, dict):
        return 0, 0, 0
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else 0
    prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
    completion = usage.get("completion_tokens", usage.get("output_tokens"))
    return _count(prompt), _count(cached), _count(completion)


def seconds_of(duration: bytes) -> float:
    """Return the seconds of a duration that `refusals.duration` formatted: `1ms`, `6.5s`, `1m2s`."""
    return sum(float(number) * _UNIT_S[unit] for number, unit in _DURATION.findall(duration))


def _count(value: object) -> int:
    return value if type(value) is int and value >= 0 else 0


def _retry_after_s(headers: Headers) -> float | None:
    for name, value in headers:
        if name == b"retry-after" and value.isdigit():
            return float(value)
    return None
