"""Connections to engines: pooled, one request at a time each, with untrusted input.

`UpstreamConnection` turns an engine's bytes into four calls on the request's owner (head, body, end, failure). The
pool keeps idle connections per replica, newest first, and closes them before the engine would. The exchange decides
what a failure means.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Protocol, cast

import httptools

from functions.api.ids import ReplicaId
from functions.decisions.routing.retry import AttemptFailure

_SECOND_LOOK_S = 0.1
# Kernel receive buffer of a connection, and so about the size of one read. By default uvloop reads 256,000 bytes, and a
# relay makes six copies of them. With a round trip of 0.2 ms this size allows 150 MB/s.
_RECEIVE_BYTES = 32 * 1024
# Limit on consecutive bytes of heads, chunk sizes and trailers, because the parser buffers a header to its end
_WITHOUT_BODY_BYTES = 64 * 1024


class AnswerReceiver(Protocol):
    """Receiver of an engine's answer."""

    def on_head(self, status: int, content_type: bytes) -> None: ...

    def on_body(self, data: bytes) -> None: ...

    def on_end(self) -> None: ...

    def on_failure(self, failure: AttemptFailure, detail: str) -> None: ...


class EngineConnection(Protocol):
    """A connection to one engine, for one request at a time, as an attempt uses it."""

    fresh: bool  # True until the connection has been idle
    retry_after: bytes  # `retry-after` header of the current answer

    def send(self, answer: AnswerReceiver, request: bytes) -> None:
        """Send one request; its answer goes to `answer`."""

    def abort(self) -> None:
        """Drop the request: the engine stops generating, and `answer` receives nothing more."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Upstreams(Protocol):
    """Source of connections for attempts: `UpstreamPool`, or a simulated fleet's."""

    def pop_idle(self, replica_id: ReplicaId) -> EngineConnection | None:
        """Return an idle connection, or None if the caller must dial."""

    async def dial(self, replica_id: ReplicaId, host: str, port: int, timeout_s: float) -> EngineConnection:
        """Return a new connection. Raise OSError (TimeoutError included) if the engine does not accept it."""

    def release(self, connection: Any) -> None:
        """Put an unused connection of `pop_idle` or `dial` back into the pool."""

    def sweep(self) -> None:
        """Close connections to engines that have been idle for too long."""

    def close(self) -> None: ...


class _Surplus(Exception):
    """Stops the parser because bytes follow a complete answer."""


class UpstreamConnection(asyncio.Protocol):
    """One connection to one engine, over its lifetime in the pool."""

    __slots__ = (
        "_answer",
        "_body",
        "_complete",
        "_content_type",
        "_head_seen",
        "_keep",
        "_parser",
        "_paused",
        "_pool",
        "_transport",
        "_without_body_bytes",
        "fresh",
        "idle_since_s",
        "on_body",
        "replica_id",
        "retry_after",
    )

    def __init__(self, pool: "UpstreamPool", replica_id: ReplicaId) -> None:
        self._pool = pool
        self.replica_id = replica_id
        self.idle_since_s = 0.0
        self.fresh = True  # True until the connection has been idle
        self._transport: asyncio.Transport | None = None
        self._answer: AnswerReceiver | None = None
        self._body: list[bytes] = []  # body pieces of one read
        self.on_body = self._body.append  # called by the parser for each chunk; one read may have hundreds
        self._parser = httptools.HttpResponseParser(self)
        self._content_type = self.retry_after = b""  # headers of the current answer
        self._head_seen = False
        self._without_body_bytes = 0  # bytes since the last piece of a body
        self._complete = False
        self._keep = False
        self._paused = False

    # calls of the exchange

    def send(self, answer: AnswerReceiver, request: bytes) -> None:
        """Send one request; its answer goes to `answer`."""
        self._answer = answer
        self._content_type = self.retry_after = b""
        self._head_seen = self._complete = False
        self._without_body_bytes = 0
        if self.usable:
            cast(asyncio.Transport, self._transport).write(request)
        else:
            self._fail(AttemptFailure.RESET, "the connection broke before it was used")

    def abort(self) -> None:
        """Drop the request: the engine sees the connection close and stops generating."""
        self._answer = None
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        if self._transport is not None and self.usable:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self._transport is not None and self.usable:
            self._paused = False
            self._transport.resume_reading()

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    # calls of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from asyncio's
        connection = transport.get_extra_info("socket")
        if connection is not None:  # a transport in a test may have no socket
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)

    def data_received(self, data: bytes) -> None:
        if self._answer is None:
            self._close()  # bytes without a request
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._complete:
                self._spoiled(error)
                return
            self._keep = False  # the answer is complete: use it, ignore what follows, and drop the connection
        body, answer = self._body, self._answer
        if body:  # pass on the body bytes of one read as one piece
            piece = body[0] if len(body) == 1 else b"".join(body)
            body.clear()
            self._without_body_bytes = 0
            if answer is not None:  # the owner has not dropped the request on the head
                answer.on_body(piece)
        else:
            self._without_body_bytes += len(data)
            if self._without_body_bytes > _WITHOUT_BODY_BYTES and not self._complete:
                self._fail(AttemptFailure.BAD_ANSWER, f"over {_WITHOUT_BODY_BYTES} bytes of a head, or of trailers")
                self._close()
                return
        if self._complete and self._answer is not None:
            self._finish(self._answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.forget(self)
        self._fail(AttemptFailure.RESET, "the connection broke" if exc is None else str(exc))

    # calls of the parser

    def on_message_begin(self) -> None:
        if self._complete:
            raise _Surplus

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == 12 and name.lower() == b"content-type":
            self._content_type = value
        elif len(name) == 11 and name.lower() == b"retry-after":
            self.retry_after = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and self._answer is not None:
            self._head_seen = True
            self._answer.on_head(status, self._content_type)

    def on_message_complete(self) -> None:
        self._complete = self._head_seen
        self._keep = bool(self._parser.should_keep_alive())

    # internals

    def _spoiled(self, error: Exception) -> None:
        switched = isinstance(error, httptools.HttpParserUpgrade)
        self._fail(AttemptFailure.BAD_ANSWER, "the engine switched protocols" if switched else f"not HTTP: {error}")
        self._close()

    def _finish(self, answer: AnswerReceiver) -> None:
        if self._paused:  # the client paused just as the answer ended
            self.resume()
        self._answer = None
        self._complete = False
        if self._keep:
            self._pool.release(self)
        else:
            self._close()
        answer.on_end()

    def _fail(self, failure: AttemptFailure, detail: str) -> None:
        answer, self._answer = self._answer, None
        self._body.clear()
        if answer is not None:
            answer.on_failure(failure, detail)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class UpstreamPool:
    """A bounded set of idle connections per replica. The sweep closes those that have been idle for too long."""

    def __init__(self, clock: Callable[[], float], idle_per_replica: int, keep_alive_s: float) -> None:
        self._clock = clock
        self._idle_per_replica = idle_per_replica
        self._keep_alive_s = keep_alive_s
        self._idle: dict[ReplicaId, list[UpstreamConnection]] = {}
        self._closed = False

    def pop_idle(self, replica_id: ReplicaId) -> UpstreamConnection | None:
        """Return the connection that was idle for the shortest time, or None if the caller must dial."""
        idle = self._idle.get(replica_id)
        while idle:
            connection = idle.pop()
            if connection.usable and self._clock() - connection.idle_since_s < self._keep_alive_s:
                return connection
            connection.abort()
        return None

    async def dial(self, replica_id: ReplicaId, host: str, port: int, timeout_s: float) -> UpstreamConnection:
        """Return a new connection. Raise OSError (TimeoutError included) if the engine does not accept it.

        After a stall of the event loop the timer can expire although the connection was made in time. The second,
        short wait prevents blaming the replica for the gateway's own stall (for example a thousand TLS handshakes).
        """
        loop = asyncio.get_running_loop()
        dialling = loop.create_task(loop.create_connection(lambda: UpstreamConnection(self, replica_id), host, port))
        try:
            for wait_s in (timeout_s, _SECOND_LOOK_S):
                if (await asyncio.wait({dialling}, timeout=wait_s))[0]:
                    return dialling.result()[1]
        finally:
            dialling.cancel()  # does nothing if the task is done
        raise TimeoutError(f"no connection in {timeout_s} s")

    def release(self, connection: UpstreamConnection) -> None:
        idle = self._idle.setdefault(connection.replica_id, [])
        if not connection.usable or self._closed or len(idle) >= self._idle_per_replica:
            connection.abort()
            return
        connection.fresh = False
        connection.idle_since_s = self._clock()
        idle.append(connection)

    def forget(self, connection: UpstreamConnection) -> None:
        idle = self._idle.get(connection.replica_id)
        if idle and connection in idle:
            idle.remove(connection)

    def sweep(self) -> None:
        """Close connections that have been idle for too long, and forget replicas without idle connections."""
        oldest_s = self._clock() - self._keep_alive_s
        for replica_id, idle in list(self._idle.items()):
            expired = [connection for connection in idle if connection.idle_since_s < oldest_s]
            self._idle[replica_id] = [connection for connection in idle if connection.idle_since_s >= oldest_s]
            for connection in expired:
                connection.abort()
            if not self._idle[replica_id]:
                del self._idle[replica_id]

    def close(self) -> None:
        self._closed = True
        for idle in self._idle.values():
            for connection in list(idle):
                connection.abort()
        self._idle.clear()
