"""`/v1/artifacts`: store adapters, sent as an upload or fetched from an address, under the digest of their content.

An upload is never held in memory. Its data goes to the staging disk one megabyte at a time, is checked there, and is
published only if all of it is valid. An interrupted upload leaves nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, ClassVar, Protocol

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from functions.api.ids import TenantId
from functions.artifacts.ingest import Ingested, IngestPolicy
from functions.fleet import own_stalls
from functions.http.multipart import MultipartForm, MultipartInvalid, boundary_of, text_of
from functions.registry.conventions import DigestName, JsonBody, body_of
from functions.registry.errors import ApiError
from functions.registry.ingesting import Ingesting
from functions.registry.principal import Principal
from functions.registry.services import RegistryServices
from functions.registry.sql import artifacts
from functions.registry.sql.artifacts import StoredArtifact
from functions.registry.version_content import no_store

UPLOAD_DEADLINE_S = 1800.0
READ_TIMEOUT_S = 30.0  # between two pieces of a body
RATE_GRACE_S = 30.0  # waiting time before the average rate is checked
_BLOCK_BYTES = 1024 * 1024
_FIELDS = frozenset({"tenant", "base_model", "adapter_type"})

_TAKES = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "tenant": {
                            "type": "string",
                            "description": "Tenant that owns the adapter; only the operator may name another one.",
                        },
                        "base_model": {
                            "type": "string",
                            "description": "Base model that the adapter is checked against.",
                        },
                        "adapter_type": {"type": "string", "enum": ["lora"]},
                        "file": {"type": "array", "items": {"type": "string", "format": "binary"}},
                    },
                    "required": ["file"],
                }
            },
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "artifact_uri": {"type": "string", "minLength": 1, "maxLength": 600},
                        "tenant": {"type": "string", "maxLength": 63},
                        "base_model": {"type": "string", "maxLength": 63},
                    },
                    "required": ["artifact_uri"],
                    "additionalProperties": False,
                }
            },
        },
    }
}


class FromUri(JsonBody, frozen=True):
    artifact_uri: Annotated[str, msgspec.Meta(min_length=1, max_length=600)]
    tenant: Annotated[str, msgspec.Meta(max_length=63)] | None = None
    base_model: Annotated[str, msgspec.Meta(max_length=63)] | None = None


def artifact_routes(services: RegistryServices) -> APIRouter:
    router = APIRouter()
    authenticator, database = services.authenticator, services.database

    @router.post("/v1/artifacts", status_code=201, openapi_extra=_TAKES)
    async def store_artifact(request: Request, who: Annotated[Principal, Depends(authenticator.writer)]) -> Response:
        """Store an adapter: its uploaded files, or those fetched from an address. 201 if the content is new to the
        tenant, else 200."""
        ingesting = services.ingesting
        if ingesting is None:
            raise no_store()
        media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media == "application/json":
            body = await body_of(FromUri)(request)
            tenant = _tenant(services, who, body.tenant)
            with ingesting.reserve_place(tenant):
                expect = await services.expectation(tenant, _base(services, tenant, body.base_model))
                ingested, is_new = await ingesting.from_uri(body.artifact_uri, expect, who.actor(request))
        elif media == "multipart/form-data":
            with ingesting.reserve_place(who.tenant):
                tenant, ingested, is_new = await _receive_form(services, ingesting, request, who)
        else:
            message = "send multipart/form-data with the files, or application/json with an artifact_uri"
            raise ApiError(415, "unsupported_media_type", message)
        return JSONResponse(_ingested(ingested, tenant), 201 if is_new else 200)

    @router.get("/v1/artifacts/{digest}")
    async def one(digest: DigestName, who: Annotated[Principal, Depends(authenticator.reader)]) -> dict[str, Any]:
        """An artifact that the caller's tenant or the operator stored; the operator sees every tenant's. 404 for all
        others."""
        found = await database.run(lambda: database.read(lambda c: artifacts.find(c, digest, who.tenant)))
        if found is None:
            message = f"artifact {digest} does not exist or is not yours; POST /v1/artifacts stores one"
            raise ApiError(404, "artifact_not_found", message, "digest")
        return _stored(found)

    return router


async def _receive_form(
    services: RegistryServices, ingesting: Ingesting, request: Request, who: Principal
) -> tuple[TenantId | None, Ingested, bool]:
    try:
        boundary = boundary_of(request.headers.get("content-type", ""))
        manager = ingesting.ingest.upload(who.tenant)
        upload = await ingesting.run(manager.__enter__)
        failure: BaseException | None = None
        try:
            form = AdapterForm(boundary, upload.file)
            async for block in _blocks(request, ingesting.ingest.policy):
                await ingesting.run(lambda block=block: form.write(block))  # type: ignore[misc]
            await ingesting.run(form.end)
            tenant, base = _form_target(services, who, form.fields)
            expect = await services.expectation(tenant, base)
            ingested = await ingesting.run(lambda: upload.finish(expect))
            actor = who.actor(request)
            is_new = await ingesting.run(lambda: ingesting.record_artifact(ingested, "", expect, actor))
        except BaseException as error:
            failure = error
            raise
        finally:
            ended = (type(failure), failure, None) if failure is not None else (None, None, None)
            await ingesting.run(lambda: manager.__exit__(*ended))
    except MultipartInvalid as error:
        raise ApiError(400, "invalid_multipart", str(error)) from error
    return tenant, ingested, is_new


async def _blocks(request: Request, policy: IngestPolicy) -> AsyncIterator[bytes]:
    """Yield the body in pieces of about a megabyte, limited in size and time and at least `min_bytes_per_s` fast. No
    timeout runs while the caller processes a piece: it would interrupt the caller's disk write instead of this wait.
    That time does not count against the sender's rate either. The minimum rate exists because a very slow sender
    would occupy one of the few upload places for half an hour."""
    clock = asyncio.get_running_loop().time
    ends_s = clock() + UPLOAD_DEADLINE_S
    max_bytes = policy.limits.max_total_bytes
    gathered: list[bytes] = []
    size_bytes = total_bytes = 0
    waited_s = 0.0
    try:
        stream = request.stream()
        while True:
            began_s = clock()
            if began_s >= ends_s:
                raise TimeoutError
            async with own_stalls.timeout(min(READ_TIMEOUT_S, ends_s - began_s)):
                piece = await anext(stream, None)
            waited_s += clock() - began_s
            if piece is None:
                break
            gathered.append(piece)
            size_bytes += len(piece)
            total_bytes += len(piece)
            if total_bytes > max_bytes + _BLOCK_BYTES:  # allows for the form's own lines
                raise ApiError(413, "body_too_large", f"the adapter is over the limit of {max_bytes} bytes")
            if waited_s > RATE_GRACE_S and total_bytes < policy.min_bytes_per_s * waited_s:
                raise _too_slow(f"the upload arrived at {total_bytes / waited_s:.0f} bytes/s", policy)
            if size_bytes >= _BLOCK_BYTES:
                yield b"".join(gathered)
                gathered, size_bytes = [], 0
        yield b"".join(gathered)
    except TimeoutError as error:
        what = f"the upload sent nothing for {READ_TIMEOUT_S:.0f} s, or took over {UPLOAD_DEADLINE_S:.0f} s"
        raise _too_slow(what, policy) from error
    except ClientDisconnect as error:
        raise ApiError(400, "body_incomplete", "the client disconnected before the body was complete") from error


def _too_slow(what: str, policy: IngestPolicy) -> ApiError:
    message = f"{what}; at least {policy.min_bytes_per_s:.0f} bytes/s are required: use a faster connection"
    return ApiError(408, "body_too_slow", message, headers={"connection": "close"})


def _form_target(services: RegistryServices, who: Principal, fields: dict[str, str]) -> tuple[TenantId | None, str]:
    unknown = sorted(set(fields) - _FIELDS)
    if unknown:
        allowed = ", ".join(sorted(_FIELDS))
        raise ApiError(400, "invalid_multipart", f"unknown field {unknown[0][:80]!r}; allowed: {allowed}")
    if fields.get("adapter_type", "lora") != "lora":
        message = "only lora adapters are served, so adapter_type must be lora"
        raise ApiError(400, "unsupported_adapter_type", message, "adapter_type")
    tenant = _tenant(services, who, fields.get("tenant"))
    return tenant, _base(services, tenant, fields.get("base_model"))


def _tenant(services: RegistryServices, who: Principal, named: str | None) -> TenantId | None:
    """Return the content's owner: the caller's tenant, or for an operator the named tenant (None: the operator itself).
    Raise ApiError 404 if a tenant names another one, CatalogueRefused if the named one is unknown."""
    if who.tenant is not None:
        if named not in (None, who.tenant):
            raise ApiError(404, "tenant_not_found", f"there is no tenant {named!r}", "tenant")
        return who.tenant
    return services.declared.require_tenant(named) if named else None


def _base(services: RegistryServices, tenant: TenantId | None, named: str | None) -> str:
    return services.declared.require_base(named, tenant) if named else ""


def _ingested(ingested: Ingested, tenant: TenantId | None) -> dict[str, Any]:
    return {
        "object": "artifact",
        "digest": ingested.digest,
        "tenant": tenant,
        "artifact_uri": "",
        "total_bytes": ingested.total_bytes,
        "facts": msgspec.to_builtins(ingested.facts),
        "signature": msgspec.to_builtins(ingested.signature),
    }


def _stored(found: StoredArtifact) -> dict[str, Any]:
    return {
        "object": "artifact",
        "digest": found.digest,
        "tenant": found.tenant or None,
        "artifact_uri": found.artifact_uri,
        "total_bytes": found.total_bytes,
        "facts": found.facts,
    }


class AdapterFileWriter(Protocol):
    def write(self, block: bytes) -> None: ...
    def close(self) -> None: ...


class AdapterForm(MultipartForm):
    """Parser of an adapter's upload form: fields first, then files, whose bytes are written as they arrive.

        part "tenant", "base_model", …     fields
        part "file"; filename="a/b"        a file of the adapter

    `open_file` returns a file's writer. The upload behind it checks names, sizes and the number of files. Blocks.
    """

    max_parts: ClassVar[int] = 1024
    fields_first: ClassVar[bool] = True

    def __init__(self, boundary: bytes, open_file: Callable[[str], AdapterFileWriter]) -> None:
        super().__init__(boundary)
        self._open_file = open_file
        self._writer: AdapterFileWriter | None = None

    def file_begins(self, filename: bytes) -> None:
        self._writer = self._open_file(text_of(filename))

    def file_data(self, piece: bytes) -> None:
        if self._writer is not None:
            self._writer.write(piece)

    def file_ends(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
