"""Callers of routes that are no engine's: the same keys, the same refusals, and a rate limit of their own."""

from fastapi import Request

from functions.decisions.catalogue import Catalogue
from functions.decisions.request.access import Caller
from functions.gateway import errors
from functions.gateway.errors import Refused
from functions.gateway.http.headers import read_headers
from functions.gateway.services import Services


def identify_lookup(services: Services, request: Request) -> tuple[Catalogue, Caller]:
    """The same for models, files and batches, of which calls are counted; raises Refused (429), too."""
    catalogue, caller = identify(services, request)
    services.lookups.count(caller.tenant, request.scope["path"].split("/")[2])
    return catalogue, caller


def identify(services: Services, request: Request) -> tuple[Catalogue, Caller]:
    """The snapshot in use, and whose request this is; raises Refused (401, 403, 503)."""
    catalogue = services.state.catalogue
    if catalogue is None:
        raise Refused(errors.unavailable("The gateway has no snapshot of the platform yet.", "not_ready", 1))
    read = read_headers(request.scope["headers"], request.state.request_id, services.limits)
    caller = services.intake.identify(catalogue, read, services.wall_clock())
    return catalogue, caller
