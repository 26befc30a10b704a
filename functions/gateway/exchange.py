"""One admitted request, from routing to its one outcome.

    start -> route -> connect -> wait for the answer -> relay -> outcome
             ^   |___ no replica has the adapter: wait for it (`cold_load`), or take the rollout's control version
             |_________ failed, nothing sent yet _______|

Nothing goes to the client before the engine's first event (or, not streamed, its whole answer), so that until then any
failure may be retried on another replica and the client notices nothing. After that a failure ends the stream with an
error event and without `[DONE]`. However it ends, it ends once: `_end` releases what was counted and accounts for it.
"""

from typing import TYPE_CHECKING

from functions.api.ids import ReplicaId
from functions.decisions import routing
from functions.decisions.retry import Failure, may_retry
from functions.decisions.routing import NoReplica, Prediction, ReplicaView
from functions.gateway import answers, errors
from functions.gateway.cold_load import ColdFailed
from functions.gateway.cold_wait import ColdWait, lacks_adapter
from functions.gateway.errors import ErrorAnswer
from functions.gateway.intake import Admitted, as_control
from functions.gateway.quotas import Entry
from functions.gateway.relay import BadAnswer, Renaming, StreamRelay, Usage, first_sign, whole_answer
from functions.gateway.sink import Headers, Sink
from functions.gateway.timeline import Timeline
from functions.gateway.upstream import UpstreamConnection

if TYPE_CHECKING:
    from functions.gateway.core import Gateway

# What a failure says about the replica rather than about the request.
_EVIDENCE = frozenset({Failure.CONNECT, Failure.RESET, Failure.FIRST_BYTE, Failure.SILENT, Failure.BAD_ANSWER})
CLIENT_LEFT = 499
_OPENING_MAX_BYTES = 64 * 1024  # held back while a stream has only said that it begins


class Exchange:
    __slots__ = (
        "_attempt",
        "_cold",
        "_connection",
        "_content_type",
        "_deadline_s",
        "_gateway",
        "_opening",
        "_parts",
        "_parts_bytes",
        "_paused_at_s",
        "_relay",
        "_renaming",
        "_replica",
        "_sink",
        "_status",
        "_tried",
        "_waiting_since_s",
        "admitted",
        "begun",
        "ended",
        "entry",
        "failures",
        "prediction",
        "timeline",
        "usage",
    )

    def __init__(self, gateway: "Gateway", admitted: Admitted, sink: Sink, timeline: Timeline, entry: Entry) -> None:
        limits = gateway.limits
        self._gateway = gateway
        self._sink = sink
        self.admitted = admitted
        self.timeline = timeline
        self.entry = entry
        asked_s = admitted.deadline_ms / 1000 if admitted.deadline_ms is not None else limits.answer_s
        self._deadline_s = timeline.received_s + min(asked_s, limits.answer_s)
        self._renaming = Renaming(admitted.model.engine_name, admitted.model.requested)
        self._tried: set[ReplicaId] = set()
        self.failures: tuple[Failure, ...] = ()
        self._attempt = 0
        self._cold: ColdWait | None = None
        self._replica: ReplicaView | None = None
        self._connection: UpstreamConnection | None = None
        self._paused_at_s: float | None = None
        self._waiting_since_s = 0.0
        self.prediction: Prediction | None = None
        self.usage: Usage | None = None
        self.begun = self.ended = False
        self._reset_answer()

    # the life of a request

    def start(self) -> None:
        self._gateway.opened(self)
        self._route()

    def _route(self) -> None:
        gateway = self._gateway
        decision = self._decide()
        gateway.metrics.routed(decision)
        if isinstance(decision, NoReplica):
            self._without_replica(decision)
            return
        self.prediction, self._replica = decision, decision.replica
        gateway.in_flight[decision.replica.id] = gateway.in_flight.get(decision.replica.id, 0) + 1
        self._tried.add(decision.replica.id)
        self.timeline.routed_s = gateway.clock()
        self._connect(decision.replica)

    def _decide(self) -> Prediction | NoReplica:
        gateway, model = self._gateway, self.admitted.model
        excluded = self._tried | gateway.fleet.ejected(model.pool, gateway.clock())
        return routing.decide(
            self.admitted.route_request(),
            gateway.fleet.pool(model.pool),
            self.admitted.routing,
            gateway.in_flight,
            excluded,
        )

    def _without_replica(self, decision: NoReplica) -> None:
        """Nobody can take the request as it is: the rollout's old version may, or a replica that loads the adapter."""
        if not lacks_adapter(decision, self.failures):
            self._shed(decision.reason, answers.no_replica(decision, self.failures, self.admitted))
        elif self._gateway.may_fall_back(self.admitted):
            self._fall_back()
        else:
            self._load_cold(decision)

    def _fall_back(self) -> None:
        """No replica has the rollout's new version, which the session has not heard or was rolled back: the old one."""
        self._gateway.candidate_unavailable(self.admitted)
        self.admitted = as_control(self.admitted, self._gateway.splits)
        self._renaming = Renaming(self.admitted.model.engine_name, self.admitted.model.requested)
        self._tried, self.failures = set(), ()
        self._reset_answer()
        self._route()

    def _load_cold(self, decision: NoReplica) -> None:
        """Wait for the adapter; `_cold_loaded` or `_cold_failed` is called, unless the request ends before."""
        gateway = self._gateway
        if self._cold is None:
            self._cold = ColdWait(gateway.cold, gateway.clock, loaded=self._cold_loaded, failed=self._cold_failed)
        excluded = frozenset(self._tried) if decision.reason != "all_tried" else frozenset()
        failed = self._cold.begin(self.admitted.route_request(), self.admitted, excluded)
        if failed is not None:
            self._cold_failed(failed, 0.0)

    def _cold_loaded(self, replica: ReplicaView, waited_s: float) -> None:
        self.timeline.load_s += waited_s
        self._tried.discard(replica.id)
        self._route()

    def _cold_failed(self, failed: ColdFailed, waited_s: float) -> None:
        self.timeline.load_s += waited_s
        self._shed("adapter_not_loaded", answers.not_loaded(failed, self.admitted))

    def _shed(self, reason: str, answer: ErrorAnswer) -> None:
        self._gateway.metrics.shed(reason)
        self._give_up(answer)

    def _connect(self, replica: ReplicaView) -> None:
        self._attempt += 1
        self._waiting_since_s = self._gateway.clock()
        pooled = self._gateway.upstreams.take(replica.id)
        if pooled is not None:
            self._send(pooled, replica)
        else:
            self._gateway.tasks.once("dial", self._dial(replica, self._attempt))

    async def _dial(self, replica: ReplicaView, attempt: int) -> None:
        upstreams = self._gateway.upstreams
        try:
            connection = await upstreams.dial(replica.id, replica.host, replica.port, self._gateway.limits.connect_s)
        except (OSError, ValueError) as error:  # ValueError: a host name that cannot be one
            if not self.ended and attempt == self._attempt:
                self._attempt_failed(Failure.CONNECT, str(error))
            return
        if self.ended or attempt != self._attempt:  # the client left, or the replica was lost, while we dialled
            upstreams.give_back(connection)
        else:
            self._send(connection, replica)

    def _send(self, connection: UpstreamConnection, replica: ReplicaView) -> None:
        self._connection = connection
        self.timeline.connected_s = self._gateway.clock()
        connection.send(self, answers.upstream_request(self.admitted, replica))

    # what the engine says

    def on_head(self, status: int, content_type: bytes) -> None:
        self._status, self._content_type = status, content_type
        expected = b"text/event-stream" if self.admitted.stream else b"application/json"
        if status == 200 and not content_type.lower().startswith(expected):
            self._drop_connection()
            self._attempt_failed(Failure.BAD_ANSWER, f"content type {content_type[:64]!r}")

    def on_body(self, data: bytes) -> None:
        self._waiting_since_s = self._gateway.clock()
        if self._status == 200 and self.admitted.stream:
            self._relay_events(data)
        else:
            self._collect(data)

    def on_end(self) -> None:
        self._connection = None
        if self._status != 200:
            self._engine_refused(self._status, b"".join(self._parts))
        elif self.admitted.stream:
            self._stream_ended()
        else:
            self._answered_whole(b"".join(self._parts))

    def on_failure(self, failure: Failure, detail: str) -> None:
        connection, self._connection = self._connection, None
        stale = connection is not None and not connection.fresh and failure is Failure.RESET and self._status == 0
        if self.begun:
            self._lost(errors.upstream_lost(), failure, detail)
        elif stale and self._replica is not None:
            self._connect(self._replica)  # the engine closed an idle connection as we took it: not an attempt
        else:
            self._attempt_failed(failure, detail)

    def _relay_events(self, data: bytes) -> None:
        try:
            out = self._relay.feed(data)
        except BadAnswer as error:
            self._drop_connection()
            self.on_failure(Failure.BAD_ANSWER, str(error))
            return
        if self._relay.error is not None:
            self._stream_failed(out, self._relay.error)
        elif self.begun:
            if out:
                self._sink.more(out)
        elif out:
            self._consider(self._opening + out)

    def _consider(self, opening: bytes) -> None:
        """Nothing was sent yet: is this an answer?"""
        sign = first_sign(opening)
        if sign == "dropped":
            self._drop_connection()
            self._attempt_failed(Failure.ABORTED, "the engine is draining")
        elif sign == "answering" or len(opening) > _OPENING_MAX_BYTES:
            self._begin(opening)
        else:
            self._opening = opening

    def _begin(self, first: bytes) -> None:
        self.begun = True
        self._gateway.answering(self.admitted)
        self.timeline.first_token_s = self._gateway.clock()
        self._sink.begin(self._headers(b"text/event-stream"), first)

    def _stream_failed(self, out: bytes, error_body: bytes) -> None:
        """The engine put an error into its stream: before the first event it is an answer, after it the end."""
        self._drop_connection()
        if self.begun:
            if out:
                self._sink.more(out)
            self._lost(errors.engine_failed(), Failure.ENGINE_ERROR, "it reported an error in its stream")
        else:
            self._engine_refused(answers.status_in_error(error_body), error_body)

    def _stream_ended(self) -> None:
        if self.begun:
            self._lost(errors.upstream_lost(), Failure.BAD_ANSWER, "the stream ended without [DONE]")
        else:
            self._attempt_failed(Failure.BAD_ANSWER, "an empty stream")

    def _finish(self) -> None:
        """`[DONE]` has passed: the answer is whole, whatever becomes of the connection."""
        self.usage = self._relay.usage
        self._sink.end(b"")
        self._end(200)

    def _collect(self, data: bytes) -> None:
        limits = self._gateway.limits
        self._parts_bytes += len(data)
        if self._parts_bytes > (limits.answer_bytes if self._status == 200 else limits.error_body_bytes):
            self._drop_connection()
            self._attempt_failed(Failure.BAD_ANSWER, f"an answer of over {self._parts_bytes} bytes")
            return
        self._parts.append(data)

    def _answered_whole(self, body: bytes) -> None:
        try:
            answer = whole_answer(body, self._renaming)
        except BadAnswer as error:
            self._attempt_failed(Failure.BAD_ANSWER, str(error))
            return
        if answer.aborted:
            self._attempt_failed(Failure.ABORTED, "the engine is draining")
            return
        self.usage = answer.usage
        self.timeline.first_token_s = self._gateway.clock()
        self._sink.whole(200, self._headers(b"application/json"), answer.body)
        self._end(200)

    def _headers(self, content_type: bytes) -> Headers:
        more = answers.more_headers(self.admitted, self.entry.headers)
        return answers.headers(self.admitted, self._replica, self.timeline, content_type, more)

    def _engine_refused(self, status: int, body: bytes) -> None:
        refusal = answers.engine_refusal(status, body, self._renaming)
        if isinstance(refusal, Failure):
            self._attempt_failed(refusal, f"status {status}")
        else:
            self._give_up(refusal)

    # what the clock, the fleet and the client say

    def check(self, now_s: float) -> None:
        """Called a few times a second: is anything waiting for too long?"""
        limits = self._gateway.limits
        if now_s >= self._deadline_s:
            self._timed_out(errors.deadline_exceeded("The deadline passed before the answer was whole."))
        elif self._paused_at_s is not None:
            if now_s - self._paused_at_s > limits.write_stall_s:
                self.client_left()
                self._sink.cut()
        elif self.begun and now_s - self._waiting_since_s > limits.idle_s:
            self._lost(errors.upstream_lost(), Failure.SILENT, f"silent for {limits.idle_s} s in its stream")
        elif self._cold is not None and self._cold.waiting:
            return  # the load has its own time
        elif not self.begun and self.admitted.stream and now_s - self._waiting_since_s > limits.first_byte_s:
            self._drop_connection()
            self._attempt_failed(Failure.FIRST_BYTE, f"no first byte in {limits.first_byte_s} s")

    def replica_lost(self, replica_id: ReplicaId) -> None:
        """The fleet says that the replica is dead or hung: while nothing was sent, go elsewhere.

        If there is an elsewhere. When a whole pool looks hung it is usually starved, and waiting is the better bet.
        """
        waits_on_it = self._replica is not None and self._replica.id == replica_id and not self.begun
        if waits_on_it and not isinstance(self._decide(), NoReplica):
            self._drop_connection()
            self._attempt_failed(Failure.REPLICA_LOST, "the fleet reports it dead or hung")

    def snapshot_swapped(self) -> None:
        """Whoever waits for a version that was rolled back meanwhile waits no more."""
        if self._cold is not None and self._cold.waiting and self._gateway.may_fall_back(self.admitted):
            self._cold.leave()
            self._fall_back()

    def client_left(self) -> None:
        """Abort the engine at once; whatever comes from it now has no reader."""
        if not self.ended:
            self._drop_connection()
            self._end(CLIENT_LEFT)

    def cut_short(self) -> None:
        """The process stops and can wait no longer."""
        if not self.ended:
            self._timed_out(errors.restarting())

    def pause(self) -> None:
        """The client reads more slowly than the engine writes: stop reading the engine, so that nothing piles up."""
        self._paused_at_s = self._gateway.clock()
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        self._paused_at_s = None
        self._waiting_since_s = self._gateway.clock()
        if self._connection is not None:
            self._connection.resume()

    # failures and the end

    def _attempt_failed(self, failure: Failure, detail: str) -> None:
        gateway, replica = self._gateway, self._replica
        now_s = gateway.clock()
        self._attempt += 1  # a dial still under way belongs to the past
        self.failures += (failure,)
        gateway.attempt_failed(self, replica, failure, detail, is_evidence=failure in _EVIDENCE)
        if failure is Failure.ADAPTER_MISSING and replica is not None:
            gateway.fleet.retract_adapter(replica.id, self.admitted.model.engine_name)
        self._release_replica()
        self._reset_answer()
        max_attempts = self.admitted.routing.retry_max_attempts
        may = may_retry(self.failures, max_attempts, now_s, self._deadline_s, int(self.begun))
        if may and gateway.may_spend_retry(self):
            gateway.metrics.retried()
            self._route()
        else:
            self._give_up(answers.all_failed(self.failures, now_s >= self._deadline_s, self.admitted))

    def _timed_out(self, answer: ErrorAnswer) -> None:
        self._drop_connection()
        if self.begun:
            self._lost(answer, None, "")
        else:
            self._give_up(answer)

    def _lost(self, answer: ErrorAnswer, failure: Failure | None, detail: str) -> None:
        """After the first byte: an error event, no `[DONE]`, a clean end of the body. `failure` blames the replica."""
        self._drop_connection()
        if self._relay.done:
            self._finish()
            return
        if failure is not None:
            self.failures += (failure,)
            self._gateway.attempt_failed(self, self._replica, failure, detail, is_evidence=failure in _EVIDENCE)
        self.usage = self._relay.usage
        self._sink.end(answer.event())
        self._end(answer.status, answer.code)

    def _give_up(self, answer: ErrorAnswer) -> None:
        more = answers.more_headers(self.admitted, self.entry.headers)
        self._sink.whole(answer.status, answers.error_headers(self.admitted.request_id, answer, more), answer.body())
        self._end(answer.status, answer.code)

    def _end(self, status: int, code: str = "") -> None:
        if self.ended:
            return
        self.ended = True
        if self._cold is not None:
            self._cold.leave()
        self._attempt += 1
        self.timeline.ended_s = self._gateway.clock()
        replica = self._replica
        self._release_replica()
        if status == 200 and replica is not None:
            self._gateway.fleet.answered(replica.id)
        self._gateway.closed(self, status, code, self._relay.events)

    def _release_replica(self) -> None:
        if self._replica is None:
            return
        in_flight, replica_id = self._gateway.in_flight, self._replica.id
        self._replica = None
        in_flight[replica_id] -= 1
        if in_flight[replica_id] <= 0:
            del in_flight[replica_id]

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def _reset_answer(self) -> None:
        self._status = 0
        self._content_type = b""
        self._opening = b""
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._relay = StreamRelay(self._renaming, self.admitted.wants_usage, self._gateway.limits.event_bytes)
