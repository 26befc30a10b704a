"""Attempt of a request on one replica: connect, send, read the answer and report to the owner.

    begin -> connecting -> waiting -> (a stream) passing -> over
                 |            |            |
                 `---------- failed ----- broke off

An engine may close an idle connection just as the attempt reuses it. That is not a failure: the attempt connects to
the same replica again. It does count as a failure if the engine had the request for longer than such a close takes,
or if the new connection fails too. Quarantine needs to know that the engine broke while it processed the request.

An attempt sends nothing to the client. It notifies its owner (the exchange) of a stream's opening, of further events,
and of exactly one end. After the end it holds neither a connection nor a slot at its replica. `drop` ends it silently
at any time. An owner may have two attempts at once, so an attempt uses only the `Owner` methods of its owner.
"""

from typing import Protocol

from functions.decisions.routing.choice import Prediction
from functions.decisions.routing.own_load import InFlightSlot
from functions.decisions.routing.retry import AttemptFailure, retry_after_s
from functions.gateway import errors
from functions.gateway.errors import ErrorAnswer, RequestRejected
from functions.gateway.http.held_bytes import FREE_BYTES, Hold
from functions.gateway.request import replies
from functions.gateway.request.answers import AnswerTooLarge, BadAnswer, Renaming, Usage, WholeAnswer
from functions.gateway.request.dialects import Relay
from functions.gateway.request.request import Admitted
from functions.gateway.request.upstream import EngineConnection
from functions.gateway.services import Services
from functions.telemetry.gap_histogram import Gaps

_SAYS_WHY_BYTES = 4096  # length of the tail that is kept of the engine's output; it contains finish_reason
_OPENING_MAX_BYTES = 64 * 1024  # limit on the opening of a stream that is held back until it contains an answer
_CLOSING_S = 1.0  # time for a close to arrive that crosses our write: a round trip, on a busy machine


class Owner(Protocol):
    """Receiver of an attempt's reports. Exactly one of the last five methods is called, and no report follows it."""

    def attempt_began(self, attempt: "Attempt", first: bytes) -> None:
        """Receive the first events of a stream, once they contain the beginning of an answer."""

    def attempt_streamed(self, attempt: "Attempt", out: bytes) -> None:
        """Receive further bytes of events of a stream that has begun."""

    def attempt_finished(self, attempt: "Attempt") -> None:
        """Note that the engine's stream is complete: it ended after `[DONE]`."""

    def attempt_answered(self, attempt: "Attempt", answer: WholeAnswer) -> None:
        """Receive the whole answer of a request that is not streamed."""

    def attempt_refused(self, attempt: "Attempt", answer: ErrorAnswer) -> None:
        """Receive the error answer for a request that the engine rejects as invalid."""

    def attempt_failed(self, attempt: "Attempt", failure: AttemptFailure, detail: str) -> None:
        """Note that the attempt failed before any answer was passed on. The request may be retried elsewhere."""

    def attempt_broke(self, attempt: "Attempt", answer: ErrorAnswer, failure: AttemptFailure, detail: str) -> None:
        """Note that a stream that had begun cannot continue. `answer` is for the client."""


class Attempt:
    __slots__ = (
        "_admitted", "_before_last", "_bound_bytes", "_connection", "_content_type", "_hold", "_last", "_opening",
        "_owner", "_parts", "_parts_bytes", "_relay", "_renaming", "_services", "_slot", "_status", "_was_reset",
        "begun", "connected_s", "gaps", "over", "prediction", "replica", "retry_after_s", "sent_s", "waiting_since_s",
    )  # fmt: skip

    def __init__(
        self, services: Services, owner: Owner, admitted: Admitted, prediction: Prediction, renaming: Renaming
    ) -> None:
        self._services = services
        self._owner = owner
        self._admitted = admitted
        self._renaming = renaming
        self.prediction = prediction  # the routing decision that chose the replica
        self.replica = prediction.replica
        self._slot: InFlightSlot | None = None  # the slot at the replica
        self._connection: EngineConnection | None = None
        self._relay: Relay | None = None
        self._status = 0
        self._content_type = self._opening = b""
        self._parts: list[bytes] | None = None
        self._parts_bytes = 0
        self._bound_bytes = services.limits.error_body_bytes  # largest answer that is collected
        self._hold: Hold | None = None  # memory reserved for a large answer
        self._was_reset = False  # a reused idle connection broke
        self.begun = self.over = False  # begun: the owner has received the opening of the stream
        self.sent_s = self.connected_s = self.waiting_since_s = 0.0  # monotonic; sent_s: when the attempt began
        self.retry_after_s = 0.0  # requested by an engine that is full
        self.gaps: Gaps | None = None  # time between the pieces of a stream
        self._before_last = self._last = b""  # the last two pieces passed on

    def start(self) -> None:
        """Reserve a slot at the replica and send the request, on an idle connection or a new one."""
        self._slot = self._services.router.record_sent(self._admitted, self.prediction)
        self.sent_s = self._slot.sent_s
        self._connect()

    def drop(self) -> None:
        """End the attempt: abort the engine's work and do not notify the owner. Does nothing if the attempt is over."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
        self._leave()

    @property
    def admitted(self) -> Admitted:
        """The request that was sent."""
        return self._admitted

    @property
    def done(self) -> bool:
        """True if `[DONE]` has passed: the answer is complete even if the connection breaks now."""
        return self._relay is not None and self._relay.done

    @property
    def usage(self) -> Usage | None:
        """Usage that the engine has reported in the stream so far, or None."""
        return self._relay.usage if self._relay is not None else None

    @property
    def events(self) -> int:
        """Number of stream events with choices."""
        return self._relay.events if self._relay is not None else 0

    @property
    def tokens(self) -> int:
        """Number of tokens in these events, at least one per event. The event that begins a chat adds about one."""
        return self._relay.tokens if self._relay is not None else 0

    @property
    def is_counted(self) -> bool:
        """True if `usage` covers everything that was passed on."""
        return self._relay is not None and self._relay.is_counted

    @property
    def passed(self) -> int:
        """Number of stream events that were passed on: of all kinds if the dialect numbers them, else `events`."""
        return self._relay.passed if self._relay is not None else 0

    @property
    def last(self) -> tuple[bytes, ...]:
        """Tails of the last two pieces of the engine's output, which contain the finish reason."""
        return (self._before_last[-_SAYS_WHY_BYTES:], self._last[-_SAYS_WHY_BYTES:])

    def pause(self) -> None:
        if self._connection is not None:
            self._connection.pause()
        if self._slot is not None:
            self._services.router.silence.stop_expecting(self._slot)

    def resume(self) -> None:
        self.waiting_since_s = self._services.clock()
        if self._connection is not None:
            self._connection.resume()
        if self._slot is not None and self.begun and not self.over:
            self._services.router.silence.expect_bytes(self._slot, self.waiting_since_s)

    def fail(self, failure: AttemptFailure, detail: str) -> None:
        """Drop an attempt that has not begun to answer and notify the owner of the failure.

        The cause is its own error, a timeout or a report of the fleet.
        """
        self.drop()
        self._owner.attempt_failed(self, failure, detail)

    def break_off(self, failure: AttemptFailure, detail: str) -> None:
        """End an attempt that has begun to answer and cannot continue, and notify the owner.

        It counts as finished if the answer was complete.
        """
        self._break_off(errors.upstream_lost(), failure, detail)

    # sending to the engine

    def _connect(self) -> None:
        self.waiting_since_s = self._services.clock()
        # If one idle connection was closed, the others probably were too: each would cost the client a round trip.
        pooled = self._services.upstreams.pop_idle(self.replica.id) if not self._was_reset else None
        if pooled is not None:
            self._send(pooled)
        else:
            self._services.tasks.once("dial", self._dial())

    async def _dial(self) -> None:
        upstreams, replica = self._services.upstreams, self.replica
        try:
            connection = await upstreams.dial(replica.id, replica.host, replica.port, self._services.limits.connect_s)
        except (OSError, ValueError) as error:  # ValueError: an invalid host name
            if not self.over:
                self.fail(AttemptFailure.RESET if self._was_reset else AttemptFailure.CONNECT, str(error))
            return
        if self.over:  # the client left, or the replica was lost, while we dialled
            upstreams.release(connection)
        else:
            self._send(connection)

    def _send(self, connection: EngineConnection) -> None:
        self._connection = connection
        self.connected_s = self.waiting_since_s = self._services.clock()
        connection.send(self, replies.upstream_request(self._admitted, self.replica, self._services.wall_clock()))

    # the engine's answer

    def on_head(self, status: int, content_type: bytes) -> None:
        self._status, self._content_type = status, content_type
        if status in (429, 503) and self._connection is not None:
            self.retry_after_s = retry_after_s(self._connection.retry_after)
        stream = self._admitted.stream
        if status == 200:
            self._bound_bytes = self._services.limits.answer_bytes
            expected = b"text/event-stream" if stream else b"application/json"
            if not content_type.lower().startswith(expected):
                self.fail(AttemptFailure.BAD_ANSWER, f"content type {content_type[:64]!r}")
            elif stream:
                admitted, limits = self._admitted, self._services.limits
                self._relay = admitted.route.dialect.relay(
                    self._renaming, admitted.include_usage, admitted.continuous_usage, limits.event_bytes
                )

    def on_body(self, data: bytes) -> None:
        now_s = self._services.clock()
        if self.gaps is not None:
            self.gaps.add(now_s - self.waiting_since_s)
        self.waiting_since_s = now_s
        self._services.router.silence.record_bytes(self.replica.id, now_s)
        if self._relay is not None:
            self._pass_on(self._relay, data)
        else:
            self._collect(data)

    def on_end(self) -> None:
        self._connection = None
        if self._relay is not None:
            self._stream_ended()
        elif self._status == 200:
            self._answered_whole(self._joined())
        else:
            self._engine_refused(self._status, self._joined())

    def on_failure(self, failure: AttemptFailure, detail: str) -> None:
        connection, self._connection = self._connection, None
        if self.begun:
            self.break_off(failure, detail)
        elif connection is not None and failure is AttemptFailure.RESET and self._was_stale(connection):
            self._was_reset = True
            self._connect()
        else:
            self.fail(failure, detail)

    def _was_stale(self, connection: EngineConnection) -> bool:
        """Return True if the engine closed an idle connection as we reused it, before it saw the request."""
        is_early = self._services.clock() - self.connected_s <= _CLOSING_S
        return not connection.fresh and self._status == 0 and is_early

    def _pass_on(self, relay: Relay, data: bytes) -> None:
        try:
            out = relay.feed(data)
        except AnswerTooLarge as error:
            self._too_large(str(error))
            return
        except BadAnswer as error:
            if self.begun:
                self.break_off(AttemptFailure.BAD_ANSWER, str(error))
            else:
                self.fail(AttemptFailure.BAD_ANSWER, str(error))
            return
        if relay.error is not None:
            self._stream_failed(out, relay.error)
        elif self.begun:
            if out:
                self._before_last, self._last = self._last, out
                self._owner.attempt_streamed(self, out)
        elif out:
            self._consider(self._opening + out)

    def _consider(self, opening: bytes) -> None:
        """Hold back the opening of a stream until it contains an answer or is too long, then notify the owner.

        If it shows that the engine is draining, the attempt fails.
        """
        sign = self._admitted.route.dialect.first_sign(opening)
        if sign == "dropped":
            self.fail(AttemptFailure.ABORTED, "the engine is draining")
        elif sign == "answering" or len(opening) > _OPENING_MAX_BYTES:
            self.begun, self._opening = True, b""
            self.gaps, self._last = Gaps(), opening
            if self._slot is not None:
                self._services.router.record_first_token(self._slot)
            self._owner.attempt_began(self, opening)
        else:
            self._opening = opening

    def _stream_failed(self, out: bytes, error_body: bytes) -> None:
        """Handle an error in the engine's stream: a rejection before the answer began, else the stream's end."""
        if self.begun:
            if out:
                self._owner.attempt_streamed(self, out)
            if self.over:
                return  # the owner has dropped the attempt
            self._break_off(errors.engine_failed(), AttemptFailure.ENGINE_ERROR, "it reported an error in its stream")
        else:
            self._engine_refused(replies.status_in_error(error_body), error_body)

    def _stream_ended(self) -> None:
        if not self.begun:
            self.fail(AttemptFailure.BAD_ANSWER, "an empty stream")
        elif self.done:
            self._leave()
            self._owner.attempt_finished(self)
        else:
            self.break_off(AttemptFailure.BAD_ANSWER, "the stream ended without [DONE]")

    def _collect(self, data: bytes) -> None:
        self._parts_bytes += len(data)
        if self._parts_bytes > self._bound_bytes:
            self._outgrown(f"an answer of over {self._bound_bytes} bytes")
        elif self._parts_bytes > FREE_BYTES and not self._has_room():
            return
        elif self._parts is None:
            self._parts = [data]
        else:
            self._parts.append(data)

    def _joined(self) -> bytes:
        """Return all collected parts as one body and release the parts, so that the body is in memory once."""
        parts, self._parts = self._parts, None
        return b"".join(parts or ())

    def _has_room(self) -> bool:
        """Reserve memory for what has arrived and return True; without room, end the attempt with a rejection."""
        if self._hold is None:
            self._hold = self._services.held.answer(self._admitted.caller.tenant, self._admitted.request_id)
        try:
            if self._parts_bytes > self._hold.bound_bytes:
                self._hold.reserve_up_to(self._parts_bytes)
        except RequestRejected as refused:
            self._parts = None
            self.drop()
            self._owner.attempt_refused(self, refused.answer)
            return False
        return True

    def _outgrown(self, detail: str) -> None:
        if self._status == 200:
            self._too_large(detail)
        else:
            self.fail(AttemptFailure.BAD_ANSWER, detail)

    def _too_large(self, detail: str) -> None:
        """End the attempt with an error that advises a smaller request: other replicas' answers would be as large."""
        answer = errors.answer_too_large(detail)
        if self.begun:
            self._break_off(answer, AttemptFailure.TOO_LARGE, detail)
        else:
            self.drop()
            self._owner.attempt_refused(self, answer)

    def _answered_whole(self, body: bytes) -> None:
        try:
            answer = self._admitted.route.dialect.whole(body, self._renaming)
        except BadAnswer as error:
            self.fail(AttemptFailure.BAD_ANSWER, str(error))
            return
        if answer.aborted:
            self.fail(AttemptFailure.ABORTED, "the engine is draining")
            return
        self._leave()
        self._last = answer.body[-_SAYS_WHY_BYTES:]
        self._owner.attempt_answered(self, answer)

    def _engine_refused(self, status: int, body: bytes) -> None:
        refusal = replies.engine_refusal(status, body, self._renaming)
        if isinstance(refusal, AttemptFailure):
            self.fail(refusal, f"status {status}")
        else:
            self.drop()
            self._owner.attempt_refused(self, refusal)

    # the end

    def _break_off(self, answer: ErrorAnswer, failure: AttemptFailure, detail: str) -> None:
        self.drop()
        if self.done:
            self._owner.attempt_finished(self)
        else:
            self._owner.attempt_broke(self, answer, failure, detail)

    def _leave(self) -> None:
        if self.over:
            return
        self.over = True
        if self._hold is not None:
            self._hold.end()
        if self._slot is not None:
            self._services.router.record_over(self._slot)
