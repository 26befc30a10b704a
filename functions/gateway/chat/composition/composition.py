"""Composition of one client's chat: recall, summarise, request (call tools, request again), store, answer.

    started -> recalled -> shortened -> requested <-> tools called -> stored -> answered

Every round is a separate request to the gateway, with the client's headers and the client's request id plus a number
(`req-1.2`), so that quotas, queues and traces see the real requests to engines. If tools may be called, only the last
answer is streamed: the caller must not see the earlier ones. The answer's usage is the sum of all rounds.

For the lane this is an `Answering`, like an exchange: the client may leave, pause or resume it. It ends exactly once.
"""

import asyncio
import logging

import orjson

from functions.gateway import errors
from functions.gateway.chat.composition import spoken
from functions.gateway.chat.composition.gathering import Gathered, PassedStream
from functions.gateway.chat.composition.history import SESSION_FIELDS, History
from functions.gateway.chat.composition.shared import ChatRequest, ChatServices
from functions.gateway.chat.tools import declared as tools
from functions.gateway.chat.tools.declared import DeclaredTools, ToolCall
from functions.gateway.errors import ErrorAnswer, RequestRejected
from functions.gateway.http.headers import RawHeaders
from functions.gateway.http.sink import Answering, Headers, Sink
from functions.gateway.intake.json_body import JsonObject
from functions.gateway.intake.routes import CHAT
from functions.gateway.request import replies

_log = logging.getLogger(__name__)
_ID_CHARS = 120  # limit of the caller's request id; the round's number is appended


class Composition:
    def __init__(self, shared: ChatServices, asked: ChatRequest, body: JsonObject, sink: Sink) -> None:
        self._shared = shared
        self._asked = asked
        self._body = body
        self._sink = sink
        self.tenant = asked.tenant.name
        self._task: asyncio.Task[None] | None = None
        self._round: Answering | None = None  # the round under way
        self._rounds = self._calls = 0
        self._notes: dict[bytes, bytes] = {}  # headers of the answer
        self._spent: dict[str, int] = {}  # tokens of rounds that the client does not see
        self._history = History(shared, asked, body, self._notes, self._spent)
        self.begun = self.ended = False

    def start(self) -> None:
        self._shared.services.tasks.once("composition", self._run())

    # methods of Answering, for the client's side

    def client_left(self) -> None:
        """End the composition because the client left: abort the round and the tool calls under way at once."""
        if self.ended:
            return
        self.ended = True
        if self._round is not None:
            self._round.client_left()
        if self._task is not None:
            self._task.cancel()

    def pause(self) -> None:
        if self._round is not None:
            self._round.pause()

    def resume(self) -> None:
        if self._round is not None:
            self._round.resume()

    # steps of the composition

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        try:
            if not self.ended:  # the client left before the start
                await self._compose()
        except RequestRejected as refused:
            self._refuse(refused)
        except Exception:
            _log.exception("request %s failed in its composition", self._asked.raw.request_id)
            self._refuse(RequestRejected(errors.internal_error()))
        finally:
            if not self.ended:  # cancelled: the process ends
                self._end()
                self._sink.cut()

    async def _compose(self) -> None:
        offered = tools.expand(self._body, self._asked.tenant.tools)
        if offered is not None and (self._body.get("n") or 1) > 1:
            raise errors.bad_request("'n' must be 1 if server tools are used.", param="n")
        await self._history.recall()
        await self._history.shorten(self._send_round)
        if offered is not None:
            await self._with_tools(offered)
        elif self._body.get("stream") is True:
            await self._stream()
        else:
            await self._deliver_answer(await self._send_round(self._body))

    async def _with_tools(self, offered: DeclaredTools) -> None:
        streamed = self._body.pop("stream", None) is True
        include_usage = (self._body.pop("stream_options", None) or {}).get("include_usage") is True
        while True:
            answer = await self._send_round(self._body)
            parsed = answer.parsed()
            message = spoken.message_in(parsed) if parsed is not None else None
            calls = offered.calls_in(message) if message is not None else None
            if parsed is None or message is None or not calls or self._rounds >= tools.MAX_ROUNDS:
                break
            spoken.add_usage(self._spent, parsed)
            self._body["messages"] = [*self._body["messages"], message, *await self._call_all(offered, calls)]
            if self._rounds + 1 >= tools.MAX_ROUNDS:
                self._body["tool_choice"] = "none"
            elif type(self._body.get("tool_choice")) is dict or self._body.get("tool_choice") == "required":
                self._body["tool_choice"] = "auto"  # the choice was obeyed; requiring it again would never end
        self._shared.metrics.tools_answered(self._rounds)
        self._notes[b"x-shoal-tools"] = b"calls=%d;rounds=%d" % (self._calls, self._rounds)
        await self._deliver_answer(answer, as_stream=(include_usage,) if streamed else None)

    async def _call_all(self, offered: DeclaredTools, calls: list[ToolCall]) -> list[JsonObject]:
        """Call all tools at once and return the results in the order of the calls.

        Raises RequestRejected if the deadline passes first.
        """
        self._calls += len(calls)
        try:
            async with asyncio.timeout(self._left_s()):
                found = await asyncio.gather(*(self._call(offered, call) for call in calls))
        except TimeoutError as error:
            raise RequestRejected(_too_late()) from error
        return [tools.result(call, content) for call, content in zip(calls, found, strict=True)]

    async def _call(self, offered: DeclaredTools, call: ToolCall) -> str:
        shared, clock = self._shared, self._shared.services.clock
        began_s = clock()
        answer = await shared.tools.call(self._asked.tenant.name, offered.tools[call.name], call)
        shared.metrics.tool_called(answer.outcome, clock() - began_s)
        return answer.content

    async def _send_round(self, body: JsonObject) -> Gathered:
        return await self._run_round(body, Gathered())

    async def _run_round(self, body: JsonObject, sink: Gathered) -> Gathered:
        """Run one round to its end and return its sink; raises RequestRejected if its answer was cut.

        The time of the first counts from the client's request, that of each later one from its own start.
        """
        self._rounds += 1
        clock = self._shared.services.clock
        received_s = self._asked.received_s if self._rounds == 1 else clock()
        self._round = self._shared.round(self._headers(), orjson.dumps(body), sink, received_s)
        await sink.ended()
        self._round = None
        if sink.was_cut:
            raise RequestRejected(errors.upstream_lost())
        return sink

    def _headers(self) -> RawHeaders:
        """Return the client's headers, with the round's request id and, after the first round, the remaining deadline.

        All rounds share one session, so that one version of a model in rollout answers them, and one replica if
        possible.
        """
        raw, left_s = self._asked.raw, self._left_s()
        changed = {b"x-request-id": b"%b.%d" % (raw.request_id[:_ID_CHARS].encode(), self._rounds)}
        if self._rounds > 1 and self._asked.known.read.deadline_ms is not None:
            changed[b"x-shoal-deadline-ms"] = b"%d" % max(1, int(left_s * 1000))
        if self._asked.known.read.session is None and not any(map(self._body.get, SESSION_FIELDS)):
            changed[b"x-session-id"] = raw.request_id.encode()
        return [header for header in raw.headers if header[0].lower() not in changed] + list(changed.items())

    def _left_s(self) -> float:
        """Return the seconds until the deadline of all rounds and calls; raise RequestRejected (504) if it passed."""
        services, asked_ms = self._shared.services, self._asked.known.read.deadline_ms
        most_s = services.limits.answer_s
        allowed_s = most_s if asked_ms is None else min(asked_ms / 1000, most_s)
        left_s = self._asked.received_s + allowed_s - services.clock()
        if left_s <= 0:
            raise RequestRejected(_too_late())
        return left_s

    # the answer

    async def _deliver_answer(self, answer: Gathered, as_stream: tuple[bool] | None = None) -> None:
        parsed = answer.parsed()
        if parsed is None:  # an error, or a cut answer
            self._deliver(answer.status or 502, answer.headers, answer.body)
            return
        message = spoken.message_in(parsed)
        if message is not None:
            await self._history.remember(message)
        parsed = spoken.with_usage(parsed, self._spent) if self._spent else parsed
        if as_stream is None:
            self._deliver(200, answer.headers, orjson.dumps(parsed))
            return
        headers = [header for header in answer.headers if header[0] != b"content-type"]
        self._end()
        self._sink.begin_stream(
            self._with_notes([(b"content-type", b"text/event-stream"), *headers]), spoken.as_events(parsed, *as_stream)
        )
        self._sink.end(b"")

    async def _stream(self) -> None:
        passing = PassedStream(self._sink, self._begin_with_notes)
        await self._run_round(self._body, passing)
        if not self.begun:
            self._deliver(passing.status or 502, passing.headers, passing.body)
            return
        if passing.listener.finished:
            await self._history.remember(passing.listener.message)
        if not self.ended:
            self._end()
            self._sink.end(passing.last)

    def _deliver(self, status: int, headers: Headers, body: bytes) -> None:
        if not self.ended:
            self._end()
            self._sink.whole(status, self._with_notes(headers), body)

    def _refuse(self, refused: RequestRejected) -> None:
        if self.ended:
            return
        self._end()
        if self.begun:  # a second answer would corrupt the first
            self._sink.cut()
            return
        metrics = self._shared.services.metrics
        replies.turn_away(metrics, self._sink, CHAT, self._asked.raw.request_id, refused)

    def _begin_with_notes(self, headers: Headers) -> Headers:
        self.begun = True
        return self._with_notes(headers)

    def _with_notes(self, headers: Headers) -> Headers:
        """Return a round's headers with the composition's notes and the client's request id in place of the round's."""
        notes = dict(self._notes) | {b"x-request-id": self._asked.raw.request_id.encode()}
        return [header for header in headers if header[0] not in notes] + list(notes.items())

    def _end(self) -> None:
        self.ended = True


def _too_late() -> ErrorAnswer:
    return errors.deadline_exceeded("The deadline passed before the answer was complete.")
