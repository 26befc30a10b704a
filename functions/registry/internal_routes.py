"""`/internal/v1`: routes that the controller reads and writes with its own credential; `weights`, for node fetchers.

The controller reads the changes, creates rollouts of models that git declares, and posts its decisions on all
rollouts. Every write names the controller's leadership (`x-shoal-fence`); writes of a former leader are rejected.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from sqlalchemy import Connection

from functions.api.snapshot_index import base_of
from functions.decisions.rollout import codec as rollout_codec
from functions.decisions.rollout import evidence as rollout_evidence
from functions.decisions.rollout import lifecycle
from functions.decisions.rollout.codec import DOCUMENT_MAX_BYTES, RolloutInvalid
from functions.fleet.role_credentials import RoleCredentials
from functions.fleet.snapshots import FENCE_HEADER
from functions.registry.conventions import CURSOR_MAX, RolloutName, etag, read_body, require_role, unless_client_leaves
from functions.registry.errors import ApiError
from functions.registry.principal import Principal
from functions.registry.rollout_routes import rollout_not_found
from functions.registry.services import RegistryServices
from functions.registry.snapshot_routes import FENCE_MAX
from functions.registry.sql import changes, rollout_writes, rollouts
from functions.registry.sql.api_keys import StoredKey
from functions.registry.sql.catalogue import StoredModel
from functions.registry.sql.changes import Changes
from functions.registry.sql.transaction import Write
from functions.registry.store import SnapshotStore

MAX_WAIT_S = 60.0
MAX_WAITERS = 64  # the followers are controllers: the leader and its candidates
OTHERS_POLL_S = 0.5  # delay at which other registries' writes are noticed; own writes wake the waiters

Answer = TypeVar("Answer")

After = Annotated[int, Query(ge=0, le=CURSOR_MAX, description="Last change that the caller has read; 0: none.")]
WaitSeconds = Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="Seconds to wait for a later change.")]
FenceToken = Annotated[
    int, Header(alias=FENCE_HEADER, ge=0, le=FENCE_MAX, description="The controller's leadership; 0: none.")
]


def internal_routes(services: RegistryServices) -> APIRouter:
    router = APIRouter(prefix="/internal/v1")
    database, controller = services.database, services.authenticator.controller
    follower = ChangesFollower(services)

    @router.get("/changes")
    async def follow(
        request: Request,
        who: Annotated[Principal, Depends(controller)],
        after: After = 0,
        wait_s: WaitSeconds = 0.0,
    ) -> Response:
        """Changes of all writes above `after`: immediately, or as soon as there are any; an empty page after `wait_s`
        seconds."""
        found = await unless_client_leaves(request, follower.next_changes(after, wait_s))
        if found is None:
            return Response(status_code=204)
        return Response(msgspec.json.encode(_described(found)), media_type="application/json")

    @router.put("/rollouts/{rollout}")
    async def create(
        request: Request, rollout: RolloutName, who: Annotated[Principal, Depends(controller)], fence: FenceToken = 0
    ) -> Response:
        """Create a rollout. 200 if it exists already, 409 if another one is active on the channel."""
        spec = await _document(request, rollout_codec.decode_spec)
        if lifecycle.id_of(spec) != rollout:
            message = f"this rollout's id is {lifecycle.id_of(spec)}: ids are derived from the rollout's content"
            raise ApiError(400, "wrong_rollout_id", message, "rollout")

        def write(write: Write) -> tuple[lifecycle.Rollout, bool]:
            rollout_writes.check_fence(write, fence)
            return rollout_writes.create(write, spec)

        row, is_new = await services.write(request, who, write)
        return _row_answer(row, 201 if is_new else 200)

    @router.post("/rollouts/{rollout}/events")
    async def happened(
        request: Request, rollout: RolloutName, who: Annotated[Principal, Depends(controller)], fence: FenceToken = 0
    ) -> Response:
        """Apply an event to the rollout. 409 if the rollout has changed since the controller read it."""
        command = await _document(request, rollout_codec.decode_command)

        def write(write: Write) -> lifecycle.Rollout:
            rollout_writes.check_fence(write, fence)
            return rollout_writes.apply_event(write, rollout, command.event, command.lock_version, services.limits)

        return _row_answer(await services.write(request, who, write), 200)

    @router.get("/rollouts/{rollout}/evidence")
    async def evidence(rollout: RolloutName, who: Annotated[Principal, Depends(controller)]) -> Response:
        """Evidence of both groups that gateways reported for the rollout's present trial."""
        stored = await database.run(lambda: database.read(lambda c: rollouts.find(c, rollout)), for_operator=True)
        if stored is None:
            raise rollout_not_found(rollout)
        heard = services.evidence.evidence(rollout, stored.rollout.trial)
        return Response(rollout_evidence.encode(heard), media_type="application/json")

    return router


class ChangesFollower:
    """Long polls on the changes. Own writes wake them; other registries' writes are found by polling."""

    def __init__(self, services: RegistryServices) -> None:
        self._database = services.database
        self._store = services.declared.store
        self._waiters = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._database.on_commit(self._committed)

    async def next_changes(self, after: int, wait_s: float) -> Changes:
        """Return the next page of changes above `after`, as soon as there are any; an empty one after `wait_s` or at
        shutdown. Raises ApiError 503 if too many callers wait."""
        if self._waiters >= MAX_WAITERS:
            raise ApiError(503, "too_many_waiters", "too many callers wait for changes", headers={"retry-after": "5"})
        self._waiters += 1
        try:
            return await self._wait(after, wait_s)
        finally:
            self._waiters -= 1

    async def _wait(self, after: int, wait_s: float) -> Changes:
        loop = self._loop = asyncio.get_running_loop()
        ends_s = loop.time() + wait_s
        while True:
            changed = self._changed
            _, last = await self._read(changes.position)
            left_s = ends_s - loop.time()
            # If `last` is below `after`, the database was restored, which the caller must notice.
            if last != after or left_s <= 0 or self._store.closing:
                return await self._read(lambda c: changes.changes_after(c, after))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, OTHERS_POLL_S)):
                    await changed.wait()

    async def _read(self, work: Callable[[Connection], Answer]) -> Answer:
        return await self._database.run(lambda: self._database.read(work), for_operator=True)

    def _committed(self) -> None:
        """Wake the waiters. Called from the writing thread."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, with its waiters
                loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def _document(request: Request, decode: Callable[[bytes], Any]) -> Any:
    body = b"".join(await read_body(request, DOCUMENT_MAX_BYTES))
    try:
        return decode(body)
    except RolloutInvalid as error:
        raise ApiError(400, "invalid_body", f"the body cannot be used: {error}") from error


def _row_answer(row: lifecycle.Rollout, status: int) -> Response:
    return Response(rollout_codec.encode(row), status, etag(row.lock_version), "application/json")


def _described(found: Changes) -> dict[str, Any]:
    return {
        "lineage": found.lineage,
        "change": found.change,
        "more": found.more,
        "models": [_model(model) for model in found.models],
        "keys": [_key(key) for key in found.keys],
        "rollouts": [msgspec.structs.asdict(stored.rollout) | {"seq": stored.seq} for stored in found.rollouts],
    }


def _model(model: StoredModel) -> dict[str, Any]:
    return {
        "id": model.id,
        "base": model.base,
        "rollout": model.rollout,
        "versions": [
            {"name": version.name, "digest": version.digest, "artifact_uri": version.artifact_uri}
            for version in model.versions
        ],
        "channels": {name: channel.version for name, channel in sorted(model.channels.items())},
        "deleted": model.deleted,
        "change": model.change,
    }


def _key(key: StoredKey) -> dict[str, Any]:
    return {
        "key_id": key.id,
        "tenant": key.tenant,
        "hmac_sha256": key.hmac_sha256,
        "scopes": key.scopes,
        "max_class": key.max_class,
        "expires_unix_s": key.expires_unix_s,
        "limits": key.limits,
        "revoked": key.revoked,
        "change": key.change,
    }


def weights_routes(store: SnapshotStore, credentials: RoleCredentials) -> APIRouter:
    """Make the routes for node fetchers, which need the agents' credential; git decides which weights are loaded."""
    router = APIRouter(dependencies=[Depends(require_role(credentials, "agent"))])

    @router.get("/internal/v1/weights/{name}/{version}")
    async def published(name: str, version: str) -> dict[str, Any]:
        """The digest of the weights that a replica of this version loads; 404 if the version is not published."""
        model = base_of(store.feed.content.tables.models, name)
        versions = model.versions if model is not None else ()
        for each in versions:
            if each.name == version:
                return {"object": "weights", "name": name, "version": version, "digest": each.digest}
        raise ApiError(404, "weights_not_found", f"no version {version[:80]!r} of a base {name[:80]!r} is published")

    return router
