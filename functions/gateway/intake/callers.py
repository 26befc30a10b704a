"""Callers of routes that no engine answers: the same keys, the same rejections, and a rate limit of their own."""

from fastapi import Request

from functions.decisions.catalogue import Catalogue
from functions.decisions.request.access import Caller
from functions.gateway import errors
from functions.gateway.errors import RequestRejected
from functions.gateway.http.headers import RequestHeaders, read_headers
from functions.gateway.services import Services
from functions.http.guarded import authenticated


def identify_lookup(services: Services, request: Request) -> tuple[Catalogue, Caller]:
    """Return the snapshot in use and a lookup's caller (models, files, batches), and count the call.

    Raises RequestRejected as `identify` does, and (429) over the limit of calls.
    """
    catalogue, caller = identify(services, request)
    services.lookups.count(caller.tenant, request.scope["path"].split("/")[2])
    return catalogue, caller


def identify_manager(services: Services, request: Request) -> tuple[Catalogue, Caller, str]:
    """Return the snapshot in use, the caller of a registry route and its `authorization` value; count the call.

    The registry checks what the key may do. Raises RequestRejected (401, 429, 503).
    """
    catalogue, read = _read(services, request)
    caller = services.intake.authenticate(catalogue, read, services.wall_clock())
    authenticated(request.scope, caller.tenant)
    services.lookups.count(caller.tenant, request.scope["path"].split("/")[2])
    return catalogue, caller, read.authorization or ""


def identify(services: Services, request: Request) -> tuple[Catalogue, Caller]:
    """Return the snapshot in use and the caller of the request; raises RequestRejected (401, 403, 503)."""
    catalogue, read = _read(services, request)
    caller = services.intake.identify(catalogue, read, services.wall_clock())
    authenticated(request.scope, caller.tenant)
    return catalogue, caller


def _read(services: Services, request: Request) -> tuple[Catalogue, RequestHeaders]:
    catalogue = services.state.catalogue
    if catalogue is None:
        raise RequestRejected(
            errors.unavailable(
                "The gateway is starting and has not loaded models and keys yet. Try again shortly.", "not_ready", 1
            )
        )
    return catalogue, read_headers(request.scope["headers"], request.state.request_id, services.limits)
