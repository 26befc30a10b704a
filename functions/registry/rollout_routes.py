"""`/v1/rollouts`: active and past rollouts, and the commands with which people control them.

pause      stay at the present share; halt conditions stay active    promote    move all traffic now
resume     continue, or start again after a rollback                 rollback   return to the version before, now
"""

import functools
from typing import Annotated, Any, Literal, get_args

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse

from functions.api.ids import MODEL_ID_PATTERN, NAME_PATTERN
from functions.decisions.rollout.events import AnyEvent, Paused, Promoted, Resumed, RolledBack
from functions.decisions.rollout.lifecycle import State
from functions.registry.conventions import (
    AfterNumber,
    IfMatch,
    JsonBody,
    Limit,
    RolloutName,
    body_of,
    body_schema,
    etag,
    lock_version_of,
    page_of,
)
from functions.registry.errors import ApiError
from functions.registry.principal import Principal
from functions.registry.services import RegistryServices
from functions.registry.sql import rollout_writes, rollouts
from functions.registry.sql.errors import CatalogueRefused
from functions.registry.sql.rollouts import Filter, StoredRollout
from functions.registry.sql.transaction import Write
from functions.registry.views import described_evidence, described_rollout

Verb = Literal["pause", "resume", "promote", "rollback"]
_DEFAULT_LIMIT = 100

Model = Annotated[str | None, Query(pattern=rf"^{MODEL_ID_PATTERN}$", description="Only rollouts of this model.")]
Channel = Annotated[str | None, Query(pattern=rf"^{NAME_PATTERN}$", description="Only rollouts of this channel.")]
InState = Annotated[State | None, Query(description="Only rollouts in this state.")]
Active = Annotated[bool | None, Query(description="True: only active rollouts. False: only ended ones.")]


class Act(JsonBody, frozen=True):
    reason: Annotated[str, msgspec.Meta(max_length=1000)] = ""


def rollout_routes(services: RegistryServices) -> APIRouter:
    router = APIRouter()
    authenticator, database = services.authenticator, services.database

    @router.get("/v1/rollouts")
    async def all_rollouts(
        *,
        who: Annotated[Principal, Depends(authenticator.reader)],
        limit: Limit = _DEFAULT_LIMIT,
        after: AfterNumber = None,
        model: Model = None,
        channel: Channel = None,
        state: InState = None,
        active: Active = None,
    ) -> dict[str, Any]:
        """The rollouts of the caller's tenant (all for the operator) that match the filters, newest first."""
        wanted = Filter(who.tenant, model, channel, state, active)
        read = functools.partial(database.read, lambda c: rollouts.page(c, wanted, after, limit + 1))
        found = await database.run(read, for_operator=who.is_operator)
        data = [described_rollout(stored.rollout) for stored in found[:limit]]
        return page_of(data, found[limit - 1].seq if len(found) > limit else None)

    @router.get("/v1/rollouts/{rollout}")
    async def one(rollout: RolloutName, who: Annotated[Principal, Depends(authenticator.reader)]) -> Response:
        """A rollout with its events, and the evidence of both groups in its present stage."""
        read = functools.partial(database.read, lambda c: (rollouts.find(c, rollout), rollouts.history(c, rollout)))
        found = await database.run(read, for_operator=who.is_operator)
        stored = _visible(found[0], who, rollout)
        seen_so_far = described_evidence(services.evidence.evidence(rollout, stored.rollout.trial))
        answer = described_rollout(stored.rollout) | seen_so_far | {"events": found[1]}
        return JSONResponse(answer, headers=etag(stored.rollout.lock_version))

    @router.post("/v1/rollouts/{rollout}/{verb}", openapi_extra=body_schema(Act, required=False))
    async def act(
        *,
        request: Request,
        rollout: RolloutName,
        verb: Verb,
        who: Annotated[Principal, Depends(authenticator.writer)],
        body: Annotated[Act, Depends(body_of(Act))],
        if_match: IfMatch = "",
    ) -> Response:
        """Apply a command, the verb, to a rollout. 409 if its state does not allow it, 412 if If-Match names another
        lock version."""
        lock_version = lock_version_of(if_match)

        def write(write: Write) -> Any:
            stored = _visible(rollouts.find(write.connection, rollout), who, rollout)
            if lock_version not in (None, stored.rollout.lock_version):
                message = f"{rollout} has changed since: its ETag is {stored.rollout.lock_version}, not {lock_version}"
                raise CatalogueRefused("precondition", "rollout_changed", message, rollout)
            return rollout_writes.apply_event(write, rollout, _event(verb, who, body), None, services.limits)

        after = await services.write(request, who, write)
        return JSONResponse(described_rollout(after), headers=etag(after.lock_version))

    return router


def _visible(stored: StoredRollout | None, who: Principal, rollout: str) -> StoredRollout:
    if stored is None or not who.owns(stored.tenant):
        raise rollout_not_found(rollout)
    return stored


def rollout_not_found(rollout: str) -> ApiError:
    return ApiError(404, "rollout_not_found", f"there is no rollout {rollout}; GET /v1/rollouts lists them", "rollout")


def _event(verb: Verb, who: Principal, body: Act) -> AnyEvent:
    assert verb in get_args(Verb)
    if verb == "pause":
        return Paused(who.name)
    if verb == "resume":
        return Resumed(who.name)
    if verb == "promote":
        return Promoted(who.name)
    return RolledBack(who.name, body.reason)
