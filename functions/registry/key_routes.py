"""`/v1/tenants/{tenant}/keys`: create and revoke API keys. Operators only.

A key is shown once, in the answer that creates it; the database stores HMAC-SHA256(pepper, secret). Gateways accept
it when the controller has published it, seconds later. Keys in a Tenant's YAML can only be changed in git.
"""

import re
import secrets
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.responses import JSONResponse

from functions.api import keys
from functions.api.keys import KEY_ID_PATTERN
from functions.api.kinds.quantities import expiry_unix_s
from functions.api.snapshot import Scope, ServiceClass
from functions.registry.conventions import MAX_LIMIT, JsonBody, Limit, TenantName, body_of, body_schema, page_of
from functions.registry.errors import ApiError
from functions.registry.principal import Principal
from functions.registry.services import RegistryServices
from functions.registry.sql import api_keys
from functions.registry.sql.api_keys import StoredKey
from functions.registry.sql.errors import CatalogueRefused
from functions.registry.sql.transaction import Write

_KEY_ID = re.compile(KEY_ID_PATTERN)
_MADE_ID_BYTES = 8

_BURST_S = 10  # the default of a QuotaPolicy

LimitName = Literal[
    "requests_per_minute",
    "input_tokens_per_minute",
    "output_tokens_per_minute",
    "concurrent_requests",
    "kv_token_seconds_per_minute",
    "gpu_seconds_per_hour",
    "max_context_tokens",
    "max_output_tokens",
    "token_burst_seconds",
]
LimitValue = Annotated[int, msgspec.Meta(ge=1, le=10**12)]
KeyName = Annotated[str, Path(pattern=rf"^{KEY_ID_PATTERN}$")]


class NewKey(JsonBody, frozen=True):
    id: Annotated[str, msgspec.Meta(max_length=32)] | None = None  # part of the key's text; generated if not given
    scopes: Annotated[tuple[Scope, ...], msgspec.Meta(min_length=1, max_length=8)] = ("inference",)
    max_class: ServiceClass = "interactive"
    expires: Annotated[str, msgspec.Meta(max_length=64)] | None = None  # 2027-06-30, or RFC 3339 with an offset
    limits: dict[LimitName, LimitValue] | None = None  # limits of this key, within its tenant's limits


def key_routes(services: RegistryServices) -> APIRouter:
    router = APIRouter()
    operator, database = services.authenticator.operator, services.database

    @router.post("/v1/tenants/{tenant}/keys", status_code=201, openapi_extra=body_schema(NewKey, required=False))
    async def create(
        request: Request,
        tenant: TenantName,
        who: Annotated[Principal, Depends(operator)],
        body: Annotated[NewKey, Depends(body_of(NewKey))],
    ) -> Response:
        """Create a key. This answer is the only place that ever shows it."""
        pepper = services.pepper
        if pepper is None:
            message = "this registry has no pepper (SHOAL_REGISTRY_PEPPER_FILE), so it cannot create keys"
            raise ApiError(503, "no_pepper", message)
        services.declared.require_tenant(tenant)
        key_id = _key_id(services, body.id)
        key = keys.mint(services.key_environment, key_id, secrets.token_bytes(32))
        parsed = keys.parse(key)
        assert parsed is not None
        row = StoredKey(
            id=key_id,
            tenant=tenant,
            hmac_sha256=keys.keyed_hash(pepper, parsed.secret),
            scopes=tuple(dict.fromkeys(body.scopes)),
            max_class=body.max_class,
            expires_unix_s=_expiry(body.expires),
            limits=_limits(body.limits or {}),
        )
        await services.write(request, who, lambda write: api_keys.create(write, row, services.max_keys_per_tenant))
        return JSONResponse(_described(row) | {"key": key}, 201, headers={"cache-control": "no-store"})

    @router.get("/v1/tenants/{tenant}/keys")
    async def of_tenant(
        tenant: TenantName, who: Annotated[Principal, Depends(operator)], limit: Limit = MAX_LIMIT, after: str = ""
    ) -> dict[str, Any]:
        """Keys that were created through the API, by id, including revoked ones. Their secrets are not shown."""
        if after and not _KEY_ID.fullmatch(after):
            raise ApiError(400, "invalid_parameter", "the parameter after is no key id", "after")
        found = await database.run(
            lambda: database.read(lambda c: api_keys.keys_of_tenant(c, tenant, after, limit + 1))
        )
        data = [_described(key) for key in found[:limit]]
        return page_of(data, found[limit - 1].id if len(found) > limit else None)

    @router.delete("/v1/tenants/{tenant}/keys/{key_id}", status_code=204)
    async def revoke(
        request: Request, tenant: TenantName, key_id: KeyName, who: Annotated[Principal, Depends(operator)]
    ) -> Response:
        """Revoke a key. Revoking it again changes nothing."""

        def write(write: Write) -> None:
            try:
                api_keys.revoke(write, tenant, key_id)
            except CatalogueRefused as error:
                if error.code == "key_not_found" and services.declared.has_key(key_id):
                    message = f"{key_id} is declared in git: remove it from its Tenant there and push"
                    raise CatalogueRefused("conflict", "declared_in_git", message, key_id) from error
                raise

        await services.write(request, who, write)
        return Response(status_code=204)

    return router


def _key_id(services: RegistryServices, wanted: str | None) -> str:
    if wanted is None:
        return f"k{secrets.token_hex(_MADE_ID_BYTES)}"
    if not _KEY_ID.fullmatch(wanted):
        message = "a key id has 1 to 32 of the characters 0-9 A-Z a-z -, and begins with a letter or digit"
        raise ApiError(400, "invalid_key_id", message, "id")
    if services.declared.has_key(wanted):
        raise CatalogueRefused("conflict", "key_exists", f"the key {wanted} exists already; choose another id", wanted)
    return wanted


def _limits(written: dict[LimitName, int]) -> dict[str, int] | None:
    return dict([("token_burst_seconds", _BURST_S), *written.items()]) if written else None


def _expiry(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return expiry_unix_s(text)
    except ValueError as error:
        raise ApiError(400, "invalid_expiry", f"expires is {text[:40]!r}; allowed: {error}", "expires") from error


def _described(key: StoredKey) -> dict[str, Any]:
    return {
        "object": "api_key",
        "id": key.id,
        "tenant": key.tenant,
        "scopes": list(key.scopes),
        "max_class": key.max_class,
        "expires_unix_s": key.expires_unix_s,
        "limits": key.limits,
        "revoked": key.revoked,
    }
