"""From a request on the wire to one that may be routed: who calls, what for, which version answers.

Six steps, in the order in which they may refuse: headers, key, scope and class, body, fields, model. Pure but for the
clock's reading, which is an argument. Both lanes call `admit`; nothing here knows which.
"""

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from functions.api.ids import TenantId
from functions.api.snapshot import ServiceClass
from functions.decisions.access import Caller, authenticate
from functions.decisions.catalogue import Catalogue, ResolvedModel
from functions.gateway import fields
from functions.gateway.errors import Refused, bad_request, body_too_large, forbidden, model_not_found, unauthorized
from functions.gateway.limits import Limits
from functions.gateway.request_headers import (
    RawHeaders,
    RequestHeaders,
    announced_bytes,
    check_json_body,
    read_headers,
)
from functions.gateway.strict_json import JsonObject, parse_object

_RANK = {"interactive": 0, "near-real-time": 1, "batch": 2}  # a key's maxClass is the most urgent that it may ask for
_SERVICE_TIERS: dict[str, ServiceClass] = {"priority": "interactive", "flex": "batch"}
_BYTES_PER_TOKEN = 4  # English under a 50k-word BPE; only ever used to compare replicas


@dataclass(frozen=True, slots=True)
class Route:
    """One engine route that the gateway offers."""

    path: str
    upstream_path: bytes
    table: Callable[[Limits], dict[str, fields.Check]]
    required: tuple[tuple[str, ...], ...]  # of each group, one field must be there
    streams: bool


CHAT = Route("/v1/chat/completions", b"/v1/chat/completions", fields.chat_table, (("messages",),), streams=True)
COMPLETIONS = Route("/v1/completions", b"/v1/completions", fields.completion_table, (("prompt",),), streams=True)
TOKENIZE = Route("/v1/tokenize", b"/tokenize", fields.tokenize_table, (("messages", "prompt"),), streams=False)
DETOKENIZE = Route("/v1/detokenize", b"/detokenize", fields.detokenize_table, (("tokens",),), streams=False)
HOT_ROUTES = {route.path: route for route in (CHAT, COMPLETIONS)}


@dataclass(frozen=True, slots=True)
class WireRequest:
    """A request to an engine route, as it came."""

    request_id: str
    headers: RawHeaders
    body: bytes


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that may be routed."""

    request_id: str
    caller: Caller
    route: Route
    model: ResolvedModel
    service_class: ServiceClass
    stream: bool
    wants_usage: bool  # the caller asked for the usage event of a stream
    deadline_ms: int | None
    prompt_tokens_estimate: int
    upstream_body: bytes


class Intake:
    """What admission needs besides the request: built once, its tables with it."""

    def __init__(self, pepper: bytes, limits: Limits) -> None:
        self.limits = limits
        self._pepper = pepper
        self._tables = {route.path: route.table(limits) for route in (CHAT, COMPLETIONS, TOKENIZE, DETOKENIZE)}

    def precheck(self, catalogue: Catalogue, headers: RawHeaders, now_unix_s: float) -> None:
        """Before a body is read: `admit`'s first steps in `admit`'s order, so that both refuse alike."""
        if (announced_bytes(headers) or 0) > self.limits.body_bytes:
            raise Refused(body_too_large(self.limits.body_bytes))
        read = read_headers(headers, "", self.limits)
        check_json_body(headers)
        self.identify(catalogue, read, now_unix_s)

    def admit(self, catalogue: Catalogue, route: Route, wire: WireRequest, now_unix_s: float) -> Admitted:
        """The admitted request; raises Refused with the answer where one of the steps says no."""
        read = read_headers(wire.headers, wire.request_id, self.limits)
        check_json_body(wire.headers)
        caller = self.identify(catalogue, read, now_unix_s)
        parsed = parse_object(wire.body, self.limits.json_depth, self.limits.json_values)
        fields.check_fields(parsed, self._tables[route.path])
        _check_required(parsed, route)
        service_class = _service_class(read, parsed, caller)
        model = _resolve(catalogue, caller, parsed)
        stream = route.streams and parsed.get("stream") is True
        wants_usage = stream and (parsed.get("stream_options") or {}).get("include_usage") is True
        return Admitted(
            request_id=wire.request_id,
            caller=caller,
            route=route,
            model=model,
            service_class=service_class,
            stream=stream,
            wants_usage=wants_usage,
            deadline_ms=read.deadline_ms,
            prompt_tokens_estimate=len(wire.body) // _BYTES_PER_TOKEN,
            upstream_body=_upstream_body(parsed, model, stream, self._cache_salt(catalogue, caller.tenant)),
        )

    def identify(self, catalogue: Catalogue, read: RequestHeaders, now_unix_s: float) -> Caller:
        """Who calls, with a key that may call models; raises Refused (401, 403)."""
        caller = authenticate(catalogue, read.authorization, self._pepper, now_unix_s)
        if caller is None:
            raise unauthorized()
        if "inference" not in caller.scopes:
            raise forbidden("This key lacks the scope 'inference'.")
        return caller

    def _cache_salt(self, catalogue: Catalogue, tenant: TenantId) -> str | None:
        """Keeps one tenant's prefix cache from answering questions about another's: equal prompts, unequal blocks."""
        if catalogue.tenants[tenant].cache_salt == "shared":
            return None
        return hmac.digest(self._pepper, b"cache-salt\0" + tenant.encode(), hashlib.sha256).hex()[:32]


def _check_required(parsed: JsonObject, route: Route) -> None:
    for group in route.required:
        if all(parsed.get(name) is None for name in group):
            raise bad_request(f"'{' or '.join(group)}' is required.", param=group[0])


def _resolve(catalogue: Catalogue, caller: Caller, parsed: JsonObject) -> ResolvedModel:
    requested = parsed.get("model")
    if type(requested) is not str or not requested:
        raise bad_request("'model' is required: a string such as \"tenant/name\".", param="model")
    model = catalogue.resolve(caller.tenant, requested)
    if model is None:
        raise model_not_found(requested)
    return model


def _service_class(read: RequestHeaders, parsed: JsonObject, caller: Caller) -> ServiceClass:
    asked = read.service_class or _SERVICE_TIERS.get(parsed.get("service_tier") or "")
    if asked is None:
        return caller.max_class
    if _RANK[asked] < _RANK[caller.max_class]:
        raise forbidden(
            f"This key may ask for the class {caller.max_class} or less urgent, not {asked}.", "class_not_allowed"
        )
    return asked


def _upstream_body(parsed: JsonObject, model: ResolvedModel, stream: bool, cache_salt: str | None) -> bytes:
    """What the engine gets: what was checked, under the engine's name for the model, with the tenant's own salt.

    A stream's usage is always asked for, since tokens are counted from it; the relay takes it out again for callers
    who did not ask.
    """
    parsed["model"] = model.engine_name
    parsed.pop("cache_salt", None)
    if cache_salt is not None:
        parsed["cache_salt"] = cache_salt
    if stream:
        parsed["stream_options"] = (parsed.get("stream_options") or {}) | {"include_usage": True}
    return orjson.dumps(parsed)
