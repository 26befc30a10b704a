"""Attempt of a request on one replica: dial, send, read what comes, and report to the owner.

    begin -> connecting -> waiting -> (a stream) passing -> over
                 |            |            |
                 `---------- failed ----- broke off

A connection that was idle may be closed by the engine just as it is taken: that is no failure, and the same replica is
dialled. But not where the engine had the request for longer than a closing takes, or takes no new connection either:
then it broke with the request in its hands, which is what quarantine has to know.

Nothing goes to a client from here: the owner (the exchange) is notified of an opening worth passing on, of what comes
then, and of exactly one end, after which the attempt holds neither a connection nor a slot at its replica. `drop` ends
it silently, at any time. An owner may have two attempts at once, so an attempt uses nothing of its owner but `Owner`.
"""

from typing import Protocol

from functions.decisions.routing.choice import Prediction
from functions.decisions.routing.own_load import InFlightSlot
from functions.decisions.routing.retry import Failure, retry_after_s
from functions.gateway import errors
from functions.gateway.errors import ErrorAnswer, Refused
from functions.gateway.http.held_bytes import FREE_BYTES, Hold
from functions.gateway.request import replies
from functions.gateway.request.answers import AnswerTooLarge, BadAnswer, Renaming, Usage, WholeAnswer
from functions.gateway.request.dialects import Relay
from functions.gateway.request.request import Admitted
from functions.gateway.request.upstream import Connection
from functions.gateway.services import Services
from functions.telemetry.gap_histogram import Gaps

_SAYS_WHY_BYTES = 4096  # of the end of what the engine said, which has its finish_reason
_OPENING_MAX_BYTES = 64 * 1024  # held back while a stream has only said that it begins
_CLOSING_S = 1.0  # what was under way when we wrote: a round trip, on a busy machine


class Owner(Protocol):
    """Who has the attempt made. Of the last five exactly one is called, after which nothing more comes."""

    def attempt_began(self, attempt: "Attempt", first: bytes) -> None:
        """A stream's first events that are an answer."""

    def attempt_streamed(self, attempt: "Attempt", out: bytes) -> None:
        """Further events."""

    def attempt_finished(self, attempt: "Attempt") -> None:
        """`[DONE]` has passed and the stream has ended."""

    def attempt_answered(self, attempt: "Attempt", answer: WholeAnswer) -> None:
        """A whole answer, not streamed."""

    def attempt_refused(self, attempt: "Attempt", answer: ErrorAnswer) -> None:
        """The engine says that the request is wrong."""

    def attempt_failed(self, attempt: "Attempt", failure: Failure, detail: str) -> None:
        """No answer, and nothing of one was passed on: it may be tried elsewhere."""

    def attempt_broke(self, attempt: "Attempt", answer: ErrorAnswer, failure: Failure, detail: str) -> None:
        """A stream that had begun cannot go on; `answer` is for the client."""


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
        self.prediction = prediction  # why this replica
        self.replica = prediction.replica
        self._slot: InFlightSlot | None = None  # at the replica
        self._connection: Connection | None = None
        self._relay: Relay | None = None
        self._status = 0
        self._content_type = self._opening = b""
        self._parts: list[bytes] | None = None
        self._parts_bytes = 0
        self._bound_bytes = services.limits.error_body_bytes  # of an answer that is collected
        self._hold: Hold | None = None  # of a large answer
        self._was_reset = False  # an idle connection broke as it was used
        self.begun = self.over = False  # begun: the owner has the opening of the stream
        self.sent_s = self.connected_s = self.waiting_since_s = 0.0  # monotonic; sent: when it began
        self.retry_after_s = 0.0  # by an engine that is full
        self.gaps: Gaps | None = None  # between the pieces of a stream
        self._before_last = self._last = b""  # pieces that were passed on

    def begin(self) -> None:
        """Take a slot at the replica, and send the request."""
        self._slot = self._services.router.sent(self._admitted, self.prediction)
        self.sent_s = self._slot.sent_s
        self._connect()

    def drop(self) -> None:
        """It is over: the engine stops at once, and the owner is not notified. Does nothing where it is."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
        self._leave()

    @property
    def admitted(self) -> Admitted:
        """What was sent."""
        return self._admitted

    @property
    def done(self) -> bool:
        """`[DONE]` has passed: the answer is whole, whatever becomes of the connection."""
        return self._relay is not None and self._relay.done

    @property
    def usage(self) -> Usage | None:
        """As a stream has told it up to now."""
        return self._relay.usage if self._relay is not None else None

    @property
    def events(self) -> int:
        """Of the stream, with choices."""
        return self._relay.events if self._relay is not None else 0

    @property
    def tokens(self) -> int:
        """Of these events, with about one more for that with which a chat begins; no fewer than there are events."""
        return self._relay.tokens if self._relay is not None else 0

    @property
    def is_counted(self) -> bool:
        """Whether `usage` is all that was passed on."""
        return self._relay is not None and self._relay.is_counted

    @property
    def passed(self) -> int:
        """Of the stream, events of all kinds."""
        return self._relay.passed if self._relay is not None else 0

    @property
    def last(self) -> tuple[bytes, ...]:
        """What the engine said last, in which it says why it ended; pieces may be large, their ends are not."""
        return (self._before_last[-_SAYS_WHY_BYTES:], self._last[-_SAYS_WHY_BYTES:])

    def pause(self) -> None:
        if self._connection is not None:
            self._connection.pause()
        if self._slot is not None:
            self._services.router.silence.pauses(self._slot)

    def resume(self) -> None:
        self.waiting_since_s = self._services.clock()
        if self._connection is not None:
            self._connection.resume()
        if self._slot is not None and self.begun and not self.over:
            self._services.router.silence.speaks(self._slot, self.waiting_since_s)

    def fail(self, failure: Failure, detail: str) -> None:
        """It has not begun and is given up: by what it saw itself, or by the clock or the fleet."""
        self.drop()
        self._owner.attempt_failed(self, failure, detail)

    def break_off(self, failure: Failure, detail: str) -> None:
        """It has begun and cannot go on: what was passed on stands, and is all there is, unless it was whole."""
        self._break_off(errors.upstream_lost(), failure, detail)

    # to the engine

    def _connect(self) -> None:
        self.waiting_since_s = self._services.clock()
        # After one that had been closed the others are likely to be, too: each would cost the client its round trip.
        pooled = self._services.upstreams.take(self.replica.id) if not self._was_reset else None
        if pooled is not None:
            self._send(pooled)
        else:
            self._services.tasks.once("dial", self._dial())

    async def _dial(self) -> None:
        upstreams, replica = self._services.upstreams, self.replica
        try:
            connection = await upstreams.dial(replica.id, replica.host, replica.port, self._services.limits.connect_s)
        except (OSError, ValueError) as error:  # ValueError: a host name that cannot be one
            if not self.over:
                self.fail(Failure.RESET if self._was_reset else Failure.CONNECT, str(error))
            return
        if self.over:  # the client left, or the replica was lost, while we dialled
            upstreams.give_back(connection)
        else:
            self._send(connection)

    def _send(self, connection: Connection) -> None:
        self._connection = connection
        self.connected_s = self.waiting_since_s = self._services.clock()
        connection.send(self, replies.upstream_request(self._admitted, self.replica, self._services.wall_clock()))

    # what the engine says

    def on_head(self, status: int, content_type: bytes) -> None:
        self._status, self._content_type = status, content_type
        if status in (429, 503) and self._connection is not None:
            self.retry_after_s = retry_after_s(self._connection.retry_after)
        stream = self._admitted.stream
        if status == 200:
            self._bound_bytes = self._services.limits.answer_bytes
            expected = b"text/event-stream" if stream else b"application/json"
            if not content_type.lower().startswith(expected):
                self.fail(Failure.BAD_ANSWER, f"content type {content_type[:64]!r}")
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
        self._services.router.silence.heard(self.replica.id, now_s)
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

    def on_failure(self, failure: Failure, detail: str) -> None:
        connection, self._connection = self._connection, None
        if self.begun:
            self.break_off(failure, detail)
        elif connection is not None and failure is Failure.RESET and self._was_stale(connection):
            self._was_reset = True
            self._connect()
        else:
            self.fail(failure, detail)

    def _was_stale(self, connection: Connection) -> bool:
        """Whether the engine closed an idle connection as we took it: then it never saw the request."""
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
                self.break_off(Failure.BAD_ANSWER, str(error))
            else:
                self.fail(Failure.BAD_ANSWER, str(error))
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
        """Nothing was passed on yet: is this an answer?"""
        sign = self._admitted.route.dialect.first_sign(opening)
        if sign == "dropped":
            self.fail(Failure.ABORTED, "the engine is draining")
        elif sign == "answering" or len(opening) > _OPENING_MAX_BYTES:
            self.begun, self._opening = True, b""
            self.gaps, self._last = Gaps(), opening
            if self._slot is not None:
                self._services.router.started(self._slot)
            self._owner.attempt_began(self, opening)
        else:
            self._opening = opening

    def _stream_failed(self, out: bytes, error_body: bytes) -> None:
        """The engine put an error into its stream: before the first event it is an answer, after it the end."""
        if self.begun:
            if out:
                self._owner.attempt_streamed(self, out)
            if self.over:
                return  # the owner wants no more of it
            self._break_off(errors.engine_failed(), Failure.ENGINE_ERROR, "it reported an error in its stream")
        else:
            self._engine_refused(replies.status_in_error(error_body), error_body)

    def _stream_ended(self) -> None:
        if not self.begun:
            self.fail(Failure.BAD_ANSWER, "an empty stream")
        elif self.done:
            self._leave()
            self._owner.attempt_finished(self)
        else:
            self.break_off(Failure.BAD_ANSWER, "the stream ended without [DONE]")

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
        """All that was collected, which is then held once and not twice."""
        parts, self._parts = self._parts, None
        return b"".join(parts or ())

    def _has_room(self) -> bool:
        """Whether the gateway can hold what has come; else it is over."""
        if self._hold is None:
            self._hold = self._services.held.answer(self._admitted.caller.tenant, self._admitted.request_id)
        try:
            if self._parts_bytes > self._hold.bound_bytes:
                self._hold.came(self._parts_bytes)
        except Refused as refused:
            self._parts = None
            self.drop()
            self._owner.attempt_refused(self, refused.answer)
            return False
        return True

    def _outgrown(self, detail: str) -> None:
        if self._status == 200:
            self._too_large(detail)
        else:
            self.fail(Failure.BAD_ANSWER, detail)

    def _too_large(self, detail: str) -> None:
        """Not the replica's fault, and no other one's answer would be smaller: the request is told to ask for less."""
        answer = errors.answer_too_large(detail)
        if self.begun:
            self._break_off(answer, Failure.TOO_LARGE, detail)
        else:
            self.drop()
            self._owner.attempt_refused(self, answer)

    def _answered_whole(self, body: bytes) -> None:
        try:
            answer = self._admitted.route.dialect.whole(body, self._renaming)
        except BadAnswer as error:
            self.fail(Failure.BAD_ANSWER, str(error))
            return
        if answer.aborted:
            self.fail(Failure.ABORTED, "the engine is draining")
            return
        self._leave()
        self._last = answer.body[-_SAYS_WHY_BYTES:]
        self._owner.attempt_answered(self, answer)

    def _engine_refused(self, status: int, body: bytes) -> None:
        refusal = replies.engine_refusal(status, body, self._renaming)
        if isinstance(refusal, Failure):
            self.fail(refusal, f"status {status}")
        else:
            self.drop()
            self._owner.attempt_refused(self, refusal)

    # the end

    def _break_off(self, answer: ErrorAnswer, failure: Failure, detail: str) -> None:
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
            self._services.router.left(self._slot)
