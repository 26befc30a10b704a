"""Where the controller makes a warm replica serve, and a serving one warm: on the peers' port, behind its token.

POST /standing {"standby": false}   200 {"phase", "reason"} as it is told to gateways from now on
                                    503 {"reason"} the engine sleeps and does not wake; ask again
"""

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from functions.engines.errors import EngineError
from functions.replica.bodies import read_body
from functions.replica.standby import Standby


class Standing(msgspec.Struct, frozen=True):
    """Unknown fields are ignored: a newer controller may say more."""

    standby: bool


def standing_routes(standby: Standby) -> APIRouter:
    router = APIRouter()

    @router.post("/standing")
    async def standing(request: Request) -> Response:
        body = await read_body(request)
        try:
            asked = msgspec.json.decode(body or b"", type=Standing)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return JSONResponse({"reason": f"not a standing: {error}"}, status_code=400)
        try:
            await standby.become(standby=asked.standby)
        except EngineError as error:
            return JSONResponse({"reason": f"the engine does not wake: {error}"}, status_code=503)
        phase, reason = standby.phase()
        return JSONResponse({"phase": phase, "reason": reason})

    return router
