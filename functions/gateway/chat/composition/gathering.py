"""Sinks of a composition's rounds: one keeps a whole answer, one passes a stream on to the client and reads along.

Neighbours: `composition` gives one to each round; `functions.gateway.http.sink` is what an exchange expects of it.
"""

import asyncio
from collections.abc import Callable

import orjson

from functions.gateway.chat.composition.spoken import Listener
from functions.gateway.http.sink import Headers, Sink
from functions.gateway.intake.json_body import JsonObject

_DONE = b"data: [DONE]\n\n"

Dress = Callable[[Headers], Headers]  # a round's headers as the client shall see them


class Gathered:
    """One round's whole answer."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self.body = b""
        self.was_cut = False
        self._ended = asyncio.Event()

    async def ended(self) -> None:
        await self._ended.wait()

    def parsed(self) -> JsonObject | None:
        """The object of a whole answer; None where it is an error."""
        return orjson.loads(self.body) if self.status == 200 else None

    def whole(self, status: int, headers: Headers, body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body
        self._ended.set()

    def begin(self, headers: Headers, first: bytes) -> None:
        """Only a round that was asked to stream begins one."""
        self.headers, self.body = headers, first

    def more(self, data: bytes) -> None:
        self.body += data

    def end(self, last: bytes) -> None:
        self.body += last
        self._ended.set()

    def cut(self) -> None:
        self.was_cut = True
        self._ended.set()


class Passing(Gathered):
    """A stream goes on to the client as it comes; a whole answer (an error) is kept."""

    def __init__(self, client: Sink, dress: Dress) -> None:
        super().__init__()
        self._client = client
        self._dress = dress
        self.listener = Listener()
        self.last = b""  # what is still to be said when all is done: `[DONE]`, or an error

    def begin(self, headers: Headers, first: bytes) -> None:
        self._client.begin(self._dress(headers), self._heard(first))  # an exchange begins with what says something

    def more(self, data: bytes) -> None:
        data = self._heard(data)
        if data:
            self._client.more(data)

    def end(self, last: bytes) -> None:
        """The client's stream is ended by the conductor."""
        self.listener.hear(last)
        self.last += last
        self._ended.set()

    def _heard(self, data: bytes) -> bytes:
        """Without `[DONE]`, which waits for the end: who has heard it may go on with the conversation at once."""
        self.listener.hear(data)
        if not data.endswith(_DONE):
            return data
        self.last = _DONE
        return data[: -len(_DONE)]
