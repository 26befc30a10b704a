"""A streamed response: each token becomes an event on the client's socket in the step that made it.

The engine calls `on_token`; the ASGI task only waits for the end. A client that reads slowly gets several tokens in
one event, as from vLLM, so nothing accumulates. A client that disconnects aborts its request immediately.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from enum import Enum, auto

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from functions.engines.sim.accept import Work
from functions.engines.sim.chunks import DONE, Chunks
from functions.engines.sim.connection import ClientConnection
from functions.engines.sim.faults import Faults, Writer, writer_for
from functions.engines.sim.live import LiveEngine
from functions.engines.sim.progress import Progress
from functions.engines.sim.refusals import engine_dead
from functions.engines.sim.sequence import Sequence as EngineSequence


class End(Enum):
    COMPLETE = auto()
    CLIENT_LEFT = auto()
    ENGINE_DIED = auto()


class Saboteur:
    """Faults that apply after a number of tokens. `allows` returns False if the token must not be sent."""

    def __init__(self, faults: Faults, connection: ClientConnection) -> None:
        self._faults = faults
        self._connection = connection
        self._tokens = 0
        self._harmless = faults == Faults()

    def allows(self) -> bool:
        if self._harmless:
            return True
        faults = self._faults
        if faults.die_after_tokens is not None and self._tokens >= faults.die_after_tokens:
            os._exit(1)
        if faults.reset_after_tokens is not None and self._tokens >= faults.reset_after_tokens:
            self._connection.reset()
            return False
        stalled = faults.stall_after_tokens is not None and self._tokens >= faults.stall_after_tokens
        self._tokens += 1
        return not stalled


class StreamResponse(Response):
    media_type = "text/event-stream"

    def __init__(self, engine: LiveEngine, work: Work, chunks: Chunks, faults: Faults, *, drained: bool) -> None:
        super().__init__(media_type=self.media_type)
        del self.headers["content-length"]
        self._engine = engine
        self._work = work
        self._chunks = chunks
        self._faults = faults
        self._refused = drained

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = ClientConnection.from_scope(scope)
        writer = writer_for(connection, self._faults.malformed)
        headers = [*self.raw_headers, *writer.headers]
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        if self._refused:
            await _finish(send, DONE)
            return
        delivery = Delivery(self._work, self._chunks, connection, writer, Saboteur(self._faults, connection))
        seqs = delivery.replies_of(self._engine.submit(self._work, delivery))
        try:
            end = await delivery.ended
        finally:
            connection.set_lost_callback(None)
            self._engine.abort(seqs)
        if end is End.ENGINE_DIED:
            await _finish(send, engine_dead().event() + DONE)
        elif end is End.COMPLETE and not connection.closing:
            await delivery.flush()
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class Delivery:
    def __init__(
        self, work: Work, chunks: Chunks, connection: ClientConnection, writer: Writer, saboteur: Saboteur
    ) -> None:
        self.replies = [Progress(choice) for choice in work.choices]
        self.ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._work = work
        self._chunks = chunks
        self._connection = connection
        self._writer = writer
        self._saboteur = saboteur
        self._by_seq: dict[int, Progress] = {}
        self._missing = len(self.replies)
        self._opened = False
        connection.set_lost_callback(self._ender(End.CLIENT_LEFT))
        if connection.closing:
            self._end(End.CLIENT_LEFT)

    def replies_of(self, seqs: Sequence[EngineSequence]) -> Sequence[EngineSequence]:
        for reply, seq in zip(self.replies, seqs, strict=True):
            reply.seq = seq
            self._by_seq[seq.seq_id] = reply
        return seqs

    def on_token(self, seq: EngineSequence) -> None:
        if not self._saboteur.allows():
            return
        self._send_tokens(self._by_seq[seq.seq_id])

    def on_abort(self, seq: EngineSequence) -> None:
        self._send_tokens(self._by_seq[seq.seq_id])

    def on_engine_death(self) -> None:
        self._end(End.ENGINE_DIED)

    async def flush(self) -> None:
        """Send the tokens that the client was too slow for, and the end of the stream."""
        if self._connection.congested:
            await self._connection.wait_until_drained()
        late = [self._opening(), *(self._pending(reply) for reply in self.replies)]
        self._writer.event(b"".join(late) + self._chunks.closing(self._work.prompt_tokens, self.replies))
        self._writer.finish()

    def _send_tokens(self, reply: Progress) -> None:
        if not self._connection.congested:
            self._writer.event(self._opening() + self._pending(reply))
        if reply.finished:
            self._missing -= 1
            if not self._missing:
                self._end(End.COMPLETE)

    def _opening(self) -> bytes:
        if self._opened:
            return b""
        self._opened = True
        return self._chunks.opening(self.replies)

    def _pending(self, reply: Progress) -> bytes:
        start, end = reply.sent_tokens, reply.tokens
        if start == end and (reply.sent_end or not reply.is_cut):
            return b""
        reply.sent_tokens, reply.sent_end = end, reply.is_cut
        return self._chunks.tokens(reply, start, end)

    def _end(self, end: End) -> None:
        if not self.ended.done():
            self.ended.set_result(end)

    def _ender(self, end: End) -> Callable[[], None]:
        return lambda: self._end(end)


async def _finish(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": False})
