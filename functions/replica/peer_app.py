"""Routes for gateways, the controller and other agents: cold adapter loads, roles, chunks. Each needs a credential.

POST /adapters/load {"engine_name", "wait_s"}
    200 {"state": "loaded", "tier"}   the adapter is in the engine; `tier` is its former tier: slot, host, disk or s3
    404 {"reason"}                    this agent's snapshot does not name it, or not yet
    409 {"reason"}                    no room: every adapter here is busy or part of a rollout
    422 {"reason"}                    the artifact or the engine rejects it
    503 {"reason"}                    the engine or the agent is not ready, or the load failed for now
    504 {"reason"}                    not loaded within `wait_s`; a load that has begun continues
"""

import hashlib
import hmac
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Annotated

import msgspec
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from functions.api.ids import EngineName
from functions.engines.errors import EngineError
from functions.fleet.agent_credentials import agent_credential
from functions.fleet.heartbeat import ENGINE_NAME_MAX_CHARS
from functions.fleet.role_credentials import Purpose, RoleCredentials
from functions.http.guarded import authenticated
from functions.replica.cold_calls import Answer, ColdLoadAnswer
from functions.replica.standby import Standby

# Bounded bodies of requests to the agent.


BODY_MAX_BYTES = 4096


async def read_body(request: Request) -> bytes | None:
    """Return the whole body, or None if it exceeds BODY_MAX_BYTES or the client disconnects before its end."""
    content = bytearray()
    try:
        async for part in request.stream():
            content += part
            if len(content) > BODY_MAX_BYTES:
                return None
    except ClientDisconnect:
        return None
    return bytes(content)


MAX_WAIT_S = 120.0
_STATUS: dict[Answer, int] = {
    "loaded": 200,
    "unknown": 404,
    "no_room": 409,
    "refused": 422,
    "not_ready": 503,
    "failed": 503,
    "timed_out": 504,
}

_PURPOSES: dict[str, Purpose] = {"/adapters/load": "load", "/standing": "standing"}

Load = Callable[[EngineName, float], Awaitable[ColdLoadAnswer]]
Accepted = Callable[[str], Iterable[str]]  # the credentials that open a path


class LoadRequest(msgspec.Struct, frozen=True):
    """Unknown fields are ignored, because a newer gateway may send more."""

    engine_name: Annotated[str, msgspec.Meta(min_length=1, max_length=ENGINE_NAME_MAX_CHARS)]
    wait_s: Annotated[float, msgspec.Meta(ge=0.0, le=MAX_WAIT_S)] = 15.0


def make_peer_app(
    accepted: Accepted,
    load: Load,
    on_answer: Callable[[Answer], None],
    routers: Sequence[APIRouter] = (),
) -> ASGIApp:
    """Build the agent's app for peers, in which every path needs a credential that `accepted` returns for it. `load` is
    called for each requested adapter and `on_answer` with its result; `routers` add routes."""
    app = FastAPI(title="shoal replica agent, for peers", docs_url=None, redoc_url=None, openapi_url=None)

    @app.post("/adapters/load")
    async def load_adapter(request: Request) -> Response:
        body = await read_body(request)
        if body is None:
            return JSONResponse(
                {"reason": f"the body is larger than {BODY_MAX_BYTES} bytes or incomplete"}, status_code=413
            )
        try:
            asked = msgspec.json.decode(body, type=LoadRequest)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return JSONResponse({"reason": f"not a load request: {error}"}, status_code=400)
        found = await load(EngineName(asked.engine_name), asked.wait_s)
        on_answer(found.answer)
        told = {"state": "loaded", "tier": found.tier} if found.answer == "loaded" else {"reason": found.reason}
        return JSONResponse(told, status_code=_STATUS[found.answer])

    for router in routers:
        app.include_router(router)
    return CredentialRequired(app, accepted)


def accepted_credentials(credentials: RoleCredentials, address: Callable[[], tuple[str, int]], path: str) -> list[str]:
    """Return the credentials that open a path of the agent: a gateway's loads, the controller's roles, nodes' chunks.

    An agent that has only the internal token also accepts the token itself and credentials derived from it for this
    address: gateways and controllers of version 0.1 send these.
    """
    host, port = address()  # the port is known only once the agent listens
    purpose = _PURPOSES.get(path)
    if purpose is None:
        found = list(credentials.accepted("chunks"))
    else:
        found = [agent_credential(secret, host, port) for secret in credentials.accepted(purpose)]
    tokens = credentials.accepted("operate") if credentials.is_token else ()
    return [*found, *tokens, *(agent_credential(token, host, port) for token in tokens)]


class CredentialRequired:
    """Middleware that requires a credential of the path, for unknown paths too."""

    def __init__(self, app: ASGIApp, accepted: Accepted) -> None:
        self._app = app
        self._accepted = accepted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._allowed(scope):
            reason = "this port needs a credential of the installation for this path: Authorization: Bearer …"
            await JSONResponse({"reason": reason}, 401, {"www-authenticate": "Bearer"})(scope, receive, send)
        elif scope["type"] == "http":
            authenticated(scope)
            await self._app(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        shown = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(shown) != 1:
            return False
        given = _hashed(shown[0])
        accepted = self._accepted(scope["path"])
        return any(hmac.compare_digest(given, _hashed(b"Bearer " + each.encode())) for each in accepted)


def _hashed(text: bytes) -> bytes:
    """Return the sha256 of the text, so that a comparison's time reveals nothing."""
    return hashlib.sha256(text).digest()


# Role changes by the controller (warm to serving and back), on the peers' port, with its credential.
#
# POST /standing {"standby": false}: 200 {"phase", "reason"} as published to gateways from now on; 503 {"reason"} if
# the engine sleeps and does not wake (retry).


class RoleChange(msgspec.Struct, frozen=True):
    """Unknown fields are ignored, because a newer controller may send more."""

    standby: bool


def role_routes(standby: Standby) -> APIRouter:
    router = APIRouter()

    @router.post("/standing")
    async def change_role(request: Request) -> Response:
        body = await read_body(request)
        try:
            asked = msgspec.json.decode(body or b"", type=RoleChange)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return JSONResponse({"reason": f"not a change of role: {error}"}, status_code=400)
        try:
            await standby.change_role(standby=asked.standby)
        except EngineError as error:
            return JSONResponse({"reason": f"the engine does not wake: {error}"}, status_code=503)
        phase, reason = standby.phase()
        return JSONResponse({"phase": phase, "reason": reason})

    return router
