"""`/internal/v1/swarm`: nodes that fetch an artifact find each other here. Behind the internal token.

POST /internal/v1/swarm/{digest}   what a node has → peers, chunks to read from the store, when to come again
GET  /internal/v1/swarm            what travels: for people
"""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response

from functions.api.ids import Digest
from functions.artifacts.errors import ArtifactRefused
from functions.artifacts.manifest import check_digest
from functions.artifacts.swarm.addresses import is_loopback
from functions.artifacts.swarm.wire import (
    BODY_MAX_BYTES,
    SWARM_PATH,
    MessageRefused,
    decode_announcement,
    encode_answer,
)
from functions.decisions.distribution.tracker import BoardFull
from functions.registry.errors import ApiError
from functions.registry.guards import read_body
from functions.registry.tracker import OtherShape, Tracker, TrackerFull

_RETRY_AFTER_S = 10


def tracker_routes(tracker: Tracker) -> APIRouter:
    router = APIRouter()

    @router.post(SWARM_PATH + "{digest}")
    async def announce(digest: str, request: Request) -> Response:
        asked = _digest(digest)
        document = b"".join(await read_body(request, BODY_MAX_BYTES))
        from_loopback = request.client is not None and is_loopback(request.client.host)
        try:
            body, news = decode_announcement(document, loopback_allowed=from_loopback)
            answer = tracker.announce(asked, body.chunks, news)
        except MessageRefused as error:
            raise ApiError(400, "invalid_announcement", str(error)) from error
        except OtherShape as error:
            raise ApiError(409, "other_manifest", str(error)) from error
        except (TrackerFull, BoardFull) as error:
            raise ApiError(503, "tracker_full", str(error), headers={"retry-after": str(_RETRY_AFTER_S)}) from error
        if body.leaving:
            tracker.leave(asked, news.address)
        return Response(encode_answer(answer, body.chunks), media_type="application/json")

    @router.get(SWARM_PATH.rstrip("/"))
    async def travelling() -> dict[str, Any]:
        return {"object": "list", "data": [asdict(report) for report in tracker.reports()]}

    return router


def _digest(text: str) -> Digest:
    try:
        return check_digest(text)
    except ArtifactRefused as error:
        raise ApiError(400, "invalid_digest", str(error), param="digest") from error
