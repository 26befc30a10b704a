"""Sinks of a composition's rounds: one collects a complete answer, one passes a stream to the client and reads it.

Neighbours: `composition` creates one for each round; `functions.gateway.http.sink` defines the interface.
"""

import asyncio
from collections.abc import Callable

import orjson

from functions.gateway.chat.composition.spoken import StreamedAnswer
from functions.gateway.http.sink import Headers, Sink
from functions.gateway.intake.json_body import JsonObject

_DONE = b"data: [DONE]\n\n"

Dress = Callable[[Headers], Headers]  # converts a round's headers to those of the client's answer


class Gathered:
    """The complete answer of one round."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.body = b""
        self.was_cut = False
        self._ended = asyncio.Event()

    async def ended(self) -> None:
        await self._ended.wait()

    def parsed(self) -> JsonObject | None:
        """Return the parsed JSON of a complete answer (200), or None for any other status."""
        return orjson.loads(self.body) if self.status == 200 else None

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body
        self._ended.set()

    def begin_stream(self, headers: Headers, first: bytes) -> None:
        """Store a stream's headers, and its first bytes as the body; only rounds that request a stream get one."""
        self.headers, self.body = headers, first

    def more(self, data: bytes) -> None:
        self.body += data

    def end(self, last: bytes) -> None:
        self.body += last
        self._ended.set()

    def cut(self) -> None:
        self.was_cut = True
        self._ended.set()


class PassedStream(Gathered):
    """A stream that is passed to the client as it arrives; a complete answer (an error) is stored."""

    def __init__(self, client: Sink, dress: Dress) -> None:
        super().__init__()
        self._client = client
        self._dress = dress
        self.listener = StreamedAnswer()
        self.last = b""  # the held back end of the stream: `[DONE]`, or an error

    def begin_stream(self, headers: Headers, first: bytes) -> None:
        self._client.begin_stream(
            self._dress(headers), self._hold_back_done(first)
        )  # an exchange's first data is never `[DONE]` alone

    def more(self, data: bytes) -> None:
        data = self._hold_back_done(data)
        if data:
            self._client.more(data)

    def end(self, last: bytes) -> None:
        """Record the round's last bytes and its end, but send nothing: the composition ends the client's stream."""
        self.listener.add_events(last)
        self.last += last
        self._ended.set()

    def _hold_back_done(self, data: bytes) -> bytes:
        """Record events and return them without a final `[DONE]`.

        That is held back until the conversation is stored, because the client may then continue it.
        """
        self.listener.add_events(data)
        if not data.endswith(_DONE):
            return data
        self.last = _DONE
        return data[: -len(_DONE)]
