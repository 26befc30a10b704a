"""Versions and channels: `PUT …/versions/{version}`, `POST …/channels/{channel}`, and their deletion.

Steps of a request: check the owner → check that git does not declare the model → get content that fits the base
(`version_content`) → one transaction.
"""

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse

from functions.api.ids import DIGEST_PATTERN, NAME_PATTERN, ModelId, is_incoming
from functions.registry.channel_moves import ChannelMove, ChannelMoveResult
from functions.registry.conventions import (
    ChannelName,
    IfMatch,
    JsonBody,
    ModelName,
    TenantName,
    VersionName,
    body_of,
    body_schema,
    etag,
    lock_version_of,
)
from functions.registry.errors import ApiError
from functions.registry.principal import Principal, own_model
from functions.registry.services import RegistryServices
from functions.registry.sql import catalogue, catalogue_writes
from functions.registry.sql.catalogue import StoredModel
from functions.registry.sql.catalogue_writes import NewVersion
from functions.registry.sql.errors import CatalogueRefused
from functions.registry.sql.transaction import Write
from functions.registry.version_content import VersionRequest, content_of
from functions.registry.views import described_rollout

_Name = Annotated[str, msgspec.Meta(pattern=rf"\A{NAME_PATTERN}\Z")]
_Digest = Annotated[str, msgspec.Meta(pattern=rf"\A{DIGEST_PATTERN}\Z")]
_Uri = Annotated[str, msgspec.Meta(min_length=1, max_length=600)]


class PutVersion(JsonBody, frozen=True):
    """Body of PUT: either the address to fetch the content from, or the digest of uploaded content."""

    base_model: _Name
    adapter_type: Annotated[str, msgspec.Meta(max_length=64)] = "lora"
    artifact_uri: _Uri | None = None
    digest: _Digest | None = None
    promote_to: _Name | None = None  # channel that moves to the version in the same transaction
    rollout: _Name | None = None  # the model's RolloutPolicy from now on; default for a new model: `default`


class MoveChannel(JsonBody, frozen=True):
    version: _Name


def version_routes(services: RegistryServices) -> APIRouter:
    router = APIRouter()
    authenticator = services.authenticator

    @router.put("/v1/models/{tenant}/{name}/versions/{version}", openapi_extra=body_schema(PutVersion))
    async def put(
        *,
        request: Request,
        tenant: TenantName,
        name: ModelName,
        version: VersionName,
        who: Annotated[Principal, Depends(authenticator.writer)],
        body: Annotated[PutVersion, Depends(body_of(PutVersion))],
    ) -> Response:
        """Register a version, and with `promote_to` point a channel to it. 201 if it is new, 200 if it exists with the
        same content, 409 with other content."""
        model = own_model(who, tenant, name)
        _check(services, model, tenant, body)
        wanted = VersionRequest(model, version, body.base_model, body.digest, body.artifact_uri)
        content = await content_of(services, who.actor(request), wanted)
        new = NewVersion(model, tenant, body.base_model, version, content.digest, content.uri, body.rollout)

        def write(write: Write) -> tuple[bool, StoredModel, ChannelMoveResult | None]:
            is_new = catalogue_writes.put_version(write, new, services.limits)
            moved = _move(services, model, body.promote_to, version).apply(write) if body.promote_to else None
            return is_new, catalogue_writes.require_model(write, model), moved

        is_new, stored, moved = await services.write(request, who, write)
        answer = _version_answer(stored, version) | (_moved_answer(moved) if moved is not None else {})
        return JSONResponse(answer, 201 if is_new else 200)

    @router.post("/v1/models/{tenant}/{name}/channels/{channel}", openapi_extra=body_schema(MoveChannel))
    async def move(
        *,
        request: Request,
        tenant: TenantName,
        name: ModelName,
        channel: ChannelName,
        who: Annotated[Principal, Depends(authenticator.writer)],
        body: Annotated[MoveChannel, Depends(body_of(MoveChannel))],
        if_match: IfMatch = "",
    ) -> Response:
        """Point the channel to a version: immediately (200) or by a rollout (202). 409 names an active rollout."""
        model = own_model(who, tenant, name)
        services.declared.refuse_git_model(model)
        _refuse_reserved(channel, "channel")
        step = _move(services, model, channel, body.version, lock_version_of(if_match))
        moved = await services.write(request, who, step.apply)
        status = 202 if moved.is_new and moved.rollout is not None else 200
        return JSONResponse(_moved_answer(moved), status, headers=etag(moved.lock_version))

    @router.delete("/v1/models/{tenant}/{name}/versions/{version}", status_code=204)
    async def delete_version(
        request: Request,
        tenant: TenantName,
        name: ModelName,
        version: VersionName,
        who: Annotated[Principal, Depends(authenticator.writer)],
    ) -> Response:
        """Delete a version; 409 while a channel points to it or a rollout of the model is active. Its name cannot be
        used for other content."""
        model = own_model(who, tenant, name)

        def write(write: Write) -> None:
            catalogue_writes.delete_version(write, _made_here(services, write, model), version)

        await services.write(request, who, write)
        return Response(status_code=204)

    @router.delete("/v1/models/{tenant}/{name}/channels/{channel}", status_code=204)
    async def delete_channel(
        request: Request,
        tenant: TenantName,
        name: ModelName,
        channel: ChannelName,
        who: Annotated[Principal, Depends(authenticator.writer)],
    ) -> Response:
        """Delete a channel; the versions of the model can still be called by name."""
        model = own_model(who, tenant, name)

        def write(write: Write) -> None:
            catalogue_writes.delete_channel(write, _made_here(services, write, model), channel)

        await services.write(request, who, write)
        return Response(status_code=204)

    @router.delete("/v1/models/{tenant}/{name}", status_code=204)
    async def delete_model(
        request: Request,
        tenant: TenantName,
        name: ModelName,
        who: Annotated[Principal, Depends(authenticator.writer)],
    ) -> Response:
        """Delete a model with its channels and versions. Rejected while a rollout is active."""
        model = own_model(who, tenant, name)

        def write(write: Write) -> None:
            catalogue_writes.delete_model(write, _made_here(services, write, model))

        await services.write(request, who, write)
        return Response(status_code=204)

    return router


def _made_here(services: RegistryServices, write: Write, model: ModelId) -> StoredModel:
    """Return a model to delete from. An API model stays deletable if git declares its id, which it would block. Raises
    CatalogueRefused if there is none."""
    if catalogue.model(write.connection, model) is None:
        services.declared.refuse_git_model(model)
    return catalogue_writes.require_model(write, model)


def _check(services: RegistryServices, model: ModelId, tenant: str, body: PutVersion) -> None:
    """Reject what can be rejected before anything is fetched: raises CatalogueRefused or ApiError for an invalid body
    or name."""
    _refuse_reserved(body.promote_to or "", "promote_to")
    services.declared.refuse_git_model(model)
    services.declared.require_tenant(tenant)
    services.declared.require_base(body.base_model, tenant)
    if body.rollout is not None:
        services.declared.require_policy(body.rollout)
    if body.adapter_type != "lora":
        message = f"adapter_type is {body.adapter_type!r}; only lora adapters are served, so it must be lora"
        raise ApiError(400, "unsupported_adapter_type", message, "adapter_type")
    if (body.artifact_uri is None) == (body.digest is None):
        message = "give either artifact_uri, the content's address, or digest, from the answer of POST /v1/artifacts"
        raise ApiError(400, "artifact_ambiguous", message, "artifact_uri")


def _refuse_reserved(channel: str, param: str) -> None:
    if is_incoming(channel):
        message = f"the channel name {channel} is reserved for versions that are being loaded; choose another one"
        raise ApiError(400, "reserved_channel", message, param)


def _move(
    services: RegistryServices, model: ModelId, channel: str, version: str, if_lock_version: int | None = None
) -> ChannelMove:
    return ChannelMove(model, channel, version, services.declared.policy, services.limits, if_lock_version)


def _version_answer(stored: StoredModel, name: str) -> dict[str, Any]:
    version = stored.version(name)
    if version is None:
        raise CatalogueRefused("missing", "version_not_found", f"{stored.id} has no version {name}")
    return {
        "object": "model.version",
        "model": stored.id,
        "version": version.name,
        "digest": version.digest,
        "artifact_uri": version.artifact_uri,
        "base_model": stored.base,
        "adapter_type": "lora",
        "created_unix_s": version.created_unix_s,
    }


def _moved_answer(moved: ChannelMoveResult) -> dict[str, Any]:
    return {
        "model": moved.model.id,
        "channel": moved.channel,
        "version": moved.version.name,
        "digest": moved.version.digest,
        "moved": moved.is_new and moved.rollout is None,
        "rollout": described_rollout(moved.rollout) if moved.rollout is not None else None,
    }
