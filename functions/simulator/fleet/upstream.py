"""Connections from a gateway to simulated engines: a request arrives as bytes, and three events return.

    send -> engine -> first token -> last token | failure                       abort: the engine drops it immediately

A gateway's attempt (`functions.gateway.request.attempt`) reads an answer's head, its first event and a last event
with the usage; the engine model counts the tokens in between. `ROUTE` is the dialect of such answers. `engine_driver`
has the engines.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import msgspec

from functions.api.ids import EngineName, ReplicaId
from functions.decisions.routing.retry import AttemptFailure
from functions.gateway.errors import ErrorAnswer
from functions.gateway.intake.routes import COMPLETIONS
from functions.gateway.request.answers import Renaming, Usage, WholeAnswer
from functions.gateway.request.dialects import Dialect
from functions.gateway.request.relay import Sign
from functions.gateway.request.upstream import AnswerReceiver
from functions.simulator.fleet.catalogue import BASE
from functions.simulator.fleet.fluid_engine import FluidSequence
from functions.simulator.workload.request import WorkloadRequest

_FIRST = b"first"
_END_OF_HEAD = b"\r\n\r\n"
_NOT_FOUND = b'{"error":{"message":"The model does not exist.","code":404}}'


class ModelledKvTransfer(msgspec.Struct):
    """The fields of `kv_transfer_params` that a simulated engine reads."""

    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    remote_engine_id: ReplicaId | None = None
    remote_prefill_cached_tokens: int = 0


class ModelledRequest(msgspec.Struct):
    """The fields of a completion request that a simulated engine reads; `prompt` is the client's key."""

    model: EngineName
    prompt: str
    kv_transfer_params: ModelledKvTransfer = msgspec.field(default_factory=ModelledKvTransfer)


class _Prefilled(msgspec.Struct):
    """Answer to a prefill request."""

    kv_transfer_params: ModelledKvTransfer
    usage: tuple[int, int]  # prompt and cached tokens


_requests = msgspec.json.Decoder(ModelledRequest)
_prefilled = msgspec.json.Decoder(_Prefilled)


class _Relay:
    """Parser of one answer: its first event, and its last one with the counts."""

    __slots__ = ("done", "error", "events", "tokens", "usage")

    is_counted = False

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.done = False
        self.error: bytes | None = None
        self.events = self.tokens = 0

    @property
    def passed(self) -> int:
        return self.events

    def feed(self, data: bytes) -> bytes:
        if data is _FIRST:
            self.events = self.tokens = 1
            return data
        prompt_tokens, completion_tokens, cached_tokens = map(int, data.split())
        self.usage, self.done = Usage(prompt_tokens, completion_tokens, cached_tokens), True
        self.events = self.tokens = completion_tokens
        return data


def _relay(renaming: Renaming, include_usage: bool, continuous_usage: bool, event_bytes: int) -> _Relay:
    return _Relay()


def _sign(opening: bytes) -> Sign:
    return "answering"


def _whole(body: bytes, renaming: Renaming) -> WholeAnswer:
    """Parse a prefill's answer, the only kind that is not streamed."""
    prompt_tokens, cached_tokens = _prefilled.decode(body).usage
    return WholeAnswer(body, Usage(prompt_tokens, 1, cached_tokens), aborted=False)


def _error_body(answer: ErrorAnswer, request_id: str) -> bytes:
    return answer.code.encode()


def _error_event(answer: ErrorAnswer, request_id: str, passed: int) -> bytes:
    return answer.code.encode()


ROUTE = replace(COMPLETIONS, dialect=Dialect(_relay, _sign, _whole, _error_body, _error_event))


class Engines(Protocol):
    """Destination of connections."""

    def send(self, connection: "ModelledConnection") -> None: ...

    def abort(self, connection: "ModelledConnection") -> None: ...


class Asking(Protocol):
    """The client of a request."""

    @property
    def request(self) -> WorkloadRequest: ...

    def blocks_for(self, *, is_adapter: bool) -> tuple[int, ...]:
        """Return the names under which an engine caches the prompt's blocks: its adapter's with `is_adapter`, else the
        base's."""


class ModelledConnection:
    """Connection of one attempt; `functions.gateway.request.upstream` has the real one."""

    __slots__ = (
        "_answer", "_askers", "_engines", "asking", "first_s", "fresh", "handed_over", "model", "replica_id",
        "retry_after", "work",
    )  # fmt: skip

    asking: Asking  # set by `send`
    model: EngineName
    handed_over: ModelledKvTransfer

    def __init__(self, engines: Engines, askers: Mapping[str, Asking], replica_id: ReplicaId) -> None:
        self._engines = engines
        self._askers = askers
        self._answer: AnswerReceiver | None = None
        self.replica_id = replica_id
        self.fresh = True
        self.retry_after = b""
        self.work: FluidSequence | None = None  # the sequence in an engine
        self.first_s: float | None = None  # time of its first token

    # Methods for the attempt.

    def send(self, answer: AnswerReceiver, request: bytes) -> None:
        self._answer = answer
        read = _requests.decode(request.partition(_END_OF_HEAD)[2])
        self.asking, self.model, self.handed_over = self._askers[read.prompt], read.model, read.kv_transfer_params
        self._engines.send(self)

    def abort(self) -> None:
        if self._answer is not None:
            self._answer = None
            self._engines.abort(self)

    def pause(self) -> None:
        """Do nothing: clients read as fast as engines write."""

    def resume(self) -> None:
        """Do nothing: nothing is paused."""

    # Methods for the engine.

    @property
    def is_adapter(self) -> bool:
        return self.model != BASE

    @property
    def is_prefill(self) -> bool:
        """True if only one token is wanted, because another engine decodes."""
        return self.handed_over.do_remote_decode

    @property
    def is_open(self) -> bool:
        return self._answer is not None

    def first(self, now_s: float) -> None:
        self.first_s = now_s
        if self.is_prefill:
            return
        if self._answer is not None:
            self._answer.on_head(200, b"text/event-stream")
        if self._answer is not None:
            self._answer.on_body(_FIRST)

    def over(self, computed_tokens: int) -> None:
        answer, request = self._answer, self.asking.request
        if answer is None:
            return
        cached_tokens = request.prompt_tokens - computed_tokens
        if self.is_prefill:
            self._answer = None
            answer.on_head(200, b"application/json")
            answer.on_body(msgspec.json.encode(self._prefilled(request.prompt_tokens, cached_tokens)))
            answer.on_end()
            return
        if self.handed_over.do_remote_prefill:
            cached_tokens = self.handed_over.remote_prefill_cached_tokens
        answer.on_body(b"%d %d %d" % (request.prompt_tokens, max(1, request.output_tokens), cached_tokens))
        self._answer = None
        answer.on_end()

    def _prefilled(self, prompt_tokens: int, cached_tokens: int) -> _Prefilled:
        params = ModelledKvTransfer(False, True, self.replica_id, cached_tokens)
        return _Prefilled(params, (prompt_tokens, cached_tokens))

    def adapter_missing(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.on_head(404, b"application/json")
            answer.on_body(_NOT_FOUND)
            answer.on_end()

    def fail(self, failure: AttemptFailure) -> None:
        """Fail the attempt: the connection broke or was refused."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.on_failure(failure, "modelled")


class ModelledUpstreams:
    """Connections of one gateway to all engines. A connection always exists; using it shows if the engine answers."""

    def __init__(self, engines: Engines, askers: Mapping[str, Asking]) -> None:
        self._engines = engines
        self._askers = askers

    def pop_idle(self, replica_id: ReplicaId) -> ModelledConnection:
        return ModelledConnection(self._engines, self._askers, replica_id)

    async def dial(self, replica_id: ReplicaId, host: str, port: int, timeout_s: float) -> ModelledConnection:
        return self.pop_idle(replica_id)

    def release(self, connection: ModelledConnection) -> None:
        """Do nothing: connections are not pooled."""

    def sweep(self) -> None:
        """Do nothing: connections are not pooled."""

    def close(self) -> None:
        """Do nothing: connections are not pooled."""
