"""Authentication of callers: the operator (internal token), the controller, or a tenant (one of its API keys).

API keys are checked against the published snapshot, as in the gateway, so authentication needs no database. Another
tenant's data answers 404, never 403.
"""

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from fastapi import Request

from functions.api.ids import ModelId, TenantId
from functions.api.snapshot import Scope
from functions.decisions.request.access import authenticate
from functions.fleet.role_credentials import RoleCredentials
from functions.http.guarded import authenticated
from functions.registry.conventions import has_credential
from functions.registry.errors import ApiError
from functions.registry.rate_limiter import TenantRateLimiter
from functions.registry.sql.audit import Actor
from functions.registry.store import SnapshotStore


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller. `tenant` None: the operator, with all rights."""

    tenant: TenantId | None
    name: str  # actor in the audit log
    scopes: tuple[Scope, ...] = ()

    @property
    def is_operator(self) -> bool:
        return self.tenant is None

    def actor(self, request: Request) -> Actor:
        return Actor(self.name, str(request.scope.get("shoal_request_id", "")))

    def owns(self, tenant: str) -> bool:
        return self.tenant is None or self.tenant == tenant


OPERATOR = Principal(None, "operator")
CONTROLLER = Principal(None, "controller")


@dataclass(frozen=True, slots=True)
class Authenticator:
    """Authenticates requests. `pepper` None: only the operator can authenticate."""

    store: SnapshotStore
    credentials: RoleCredentials
    pepper: bytes | None
    wall_clock: Callable[[], float] = time.time
    readers: TenantRateLimiter = field(default_factory=TenantRateLimiter)
    writers: TenantRateLimiter = field(
        default_factory=TenantRateLimiter
    )  # separate, so that reads of a dashboard cannot block a rollback

    def identify_caller(self, request: Request) -> Principal:
        """Return the caller that the Authorization header proves: the operator, or the tenant of a valid key. Raises
        ApiError 401 for any other."""
        header = request.headers.get("authorization", "")
        if has_credential(header, self.credentials.accepted("operate")):
            authenticated(request.scope)
            return OPERATOR
        found = None
        if self.pepper is not None:
            found = authenticate(self.store.feed.catalogue, header, self.pepper, self.wall_clock())
        if found is None:
            message = "this route needs a tenant's key or the installation's internal token: Authorization: Bearer …"
            raise ApiError(401, "invalid_key", message, headers={"www-authenticate": "Bearer"})
        authenticated(request.scope)
        return Principal(found.tenant, f"key:{found.key_id}", found.scopes)

    async def reader(self, request: Request) -> AsyncIterator[Principal]:
        """Admit the operator, or a tenant's key with the scope `models:read` or `models:write`. The request counts as
        one of its tenant's open requests until it ends; 429 if there are too many, or too many a second."""
        principal = _with_scope(self.identify_caller(request), "models:read")
        with self.readers.admit_request(principal.tenant):
            yield principal

    async def writer(self, request: Request) -> AsyncIterator[Principal]:
        """Admit the operator, or a tenant's key with the scope `models:write`, with counts and rates of their own;
        otherwise like `reader`."""
        principal = _with_scope(self.identify_caller(request), "models:write")
        with self.writers.admit_request(principal.tenant):
            yield principal

    async def operator(self, request: Request) -> Principal:
        principal = self.identify_caller(request)
        if not principal.is_operator:
            message = "only the operator may use this route: it needs the installation's internal token"
            raise ApiError(403, "operator_only", message)
        return principal

    async def gateway(self, request: Request) -> None:
        """Admit gateways and the operator; raises ApiError for all others."""
        if has_credential(request.headers.get("authorization", ""), self.credentials.accepted("account")):
            authenticated(request.scope)
        else:
            await self.operator(request)

    async def controller(self, request: Request) -> Principal:
        """Admit the controller and the operator; the principal is CONTROLLER for both."""
        if has_credential(request.headers.get("authorization", ""), self.credentials.accepted("publish")):
            authenticated(request.scope)
        else:
            await self.operator(request)
        return CONTROLLER


def own_model(principal: Principal, tenant: str, name: str) -> ModelId:
    """Return the id `tenant/name` of the model, which need not exist. Raises ApiError 404 if the caller does not own
    the tenant's models."""
    model = ModelId(f"{tenant}/{name}")
    if not principal.owns(tenant):
        raise model_not_found(model)
    return model


def model_not_found(model: str) -> ApiError:
    message = f"there is no model {model[:160]!r}; GET /v1/models lists what there is"
    return ApiError(404, "model_not_found", message, "model")


def _with_scope(principal: Principal, scope: Scope) -> Principal:
    allowed = principal.is_operator or scope in principal.scopes
    if scope == "models:read":
        allowed = allowed or "models:write" in principal.scopes  # the write scope includes reading
    if not allowed:
        message = f"this key lacks the scope {scope}; ask the operator for a key that has it"
        raise ApiError(403, "scope_missing", message)
    return principal
