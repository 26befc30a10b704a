"""A response sent as a whole: the client waits until the engine is done, and a disconnect aborts the request."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from functions.engines.sim.accept import Work
from functions.engines.sim.connection import ClientConnection
from functions.engines.sim.faults import HTML_PAGE, Faults, Malformed
from functions.engines.sim.live import LiveEngine
from functions.engines.sim.progress import Progress
from functions.engines.sim.refusals import engine_dead
from functions.engines.sim.sequence import Sequence as EngineSequence
from functions.engines.sim.sequence import Status
from functions.engines.sim.stream import End, Saboteur

BodyOf = Callable[[Sequence[Progress]], dict[str, Any]]


class Waiter:
    def __init__(self, replies: int, connection: ClientConnection, saboteur: Saboteur) -> None:
        self.ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._missing = replies
        self._saboteur = saboteur
        connection.set_lost_callback(self._left)
        if connection.closing:
            self._left()

    def on_token(self, seq: EngineSequence) -> None:
        if self._saboteur.allows() and seq.status is Status.FINISHED:
            self._one_less()

    def on_abort(self, seq: EngineSequence) -> None:
        self._one_less()

    def on_engine_death(self) -> None:
        self._end(End.ENGINE_DIED)

    def _one_less(self) -> None:
        self._missing -= 1
        if not self._missing:
            self._end(End.COMPLETE)

    def _left(self) -> None:
        self._end(End.CLIENT_LEFT)

    def _end(self, end: End) -> None:
        if not self.ended.done():
            self.ended.set_result(end)


async def generate_whole(request: Request, engine: LiveEngine, work: Work, body_of: BodyOf, faults: Faults) -> Response:
    """Return the whole response. Raise EngineRefusal if the engine dies meanwhile."""
    connection = ClientConnection.from_scope(request.scope)
    waiter = Waiter(len(work.choices), connection, Saboteur(faults, connection))
    seqs = engine.submit(work, waiter)
    try:
        end = await waiter.ended
    finally:
        connection.set_lost_callback(None)
        engine.abort(seqs)
    if end is End.ENGINE_DIED:
        raise engine_dead()
    replies = [Progress(choice, seq) for choice, seq in zip(work.choices, seqs, strict=True)]
    return json_response(body_of(replies), faults)


def json_response(body: dict[str, Any], faults: Faults) -> Response:
    content = orjson.dumps(body)
    if faults.malformed is Malformed.NON_JSON:
        content = content[: len(content) // 2]
    if faults.malformed is Malformed.HTML_BODY:
        return html_response()
    response = Response(content, media_type="application/json")
    if faults.malformed in (Malformed.WRONG_CONTENT_LENGTH, Malformed.TRUNCATED_CHUNK):
        response.headers["content-length"] = str(len(content) + 100)
    return response


def html_response() -> Response:
    return Response(HTML_PAGE, media_type="text/html")
