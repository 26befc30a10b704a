"""Intake: turns a request on the wire into an admitted one with its caller, model and version.

The steps, in the order in which they may reject: headers, key and scope (`recognise`); then body, fields, class,
model and lengths (`admit`). Between the two the gateway checks whether the tenant may send one more request. The
intake is pure except for the memory of which session got which version in a rollout (`splits`); the time is an
argument. Both lanes use it in the same way.
"""

import hashlib
import hmac
from functools import lru_cache

import msgspec
import orjson

from functions.api.ids import TenantId
from functions.api.snapshot import KeyEntry, QuotaEntry, ServiceClass
from functions.decisions.catalogue import Catalogue, ResolvedModel
from functions.decisions.quota.caps import within_key
from functions.decisions.request.access import Caller
from functions.decisions.routing.placement import Placed
from functions.gateway.errors import RequestRejected, bad_request, body_too_large, forbidden, unauthorized
from functions.gateway.http.headers import (
    RawHeaders,
    RequestHeaders,
    announced_bytes,
    check_json_body,
    read_headers,
)
from functions.gateway.intake import context_overflow, fields, models
from functions.gateway.intake.affinity import conversation_of
from functions.gateway.intake.auth import DelegatedCredentials, KnownKeys
from functions.gateway.intake.features import Features
from functions.gateway.intake.json_body import JsonObject, parse_object
from functions.gateway.intake.lengths import apply_caps, field_in_force
from functions.gateway.intake.media import admit_media
from functions.gateway.intake.routes import CHAT, CHAT_OUTPUT, ROUTES, Route
from functions.gateway.limits import Limits
from functions.gateway.request.request import Admitted
from functions.gateway.routing.splits import Sender, Splits, SplitUse

# a key's maxClass is the most urgent class that it may request
_RANK = {"interactive": 0, "near-real-time": 1, "batch": 2}
_MAX_SALTS = 10_000  # tenants
_COUNTED = {"include_usage": True, "continuous_usage_stats": True}
_SERVICE_TIERS: dict[str, ServiceClass] = {"priority": "interactive", "flex": "batch"}


# One of each is made per request; as frozen dataclasses they would cost 2 us more.


class RawRequest(msgspec.Struct, frozen=True):
    request_id: str
    headers: RawHeaders
    body: bytes


class Recognised(msgspec.Struct, frozen=True):
    """The caller of a request, and the tier that limits it; None: unlimited."""

    read: RequestHeaders
    caller: Caller
    key: KeyEntry | None
    tier: QuotaEntry | None
    quota: QuotaEntry | None  # the tier's limits combined with the key's own


class Intake:
    """The state that admission needs besides the request, with the field tables, built once."""

    def __init__(self, pepper: bytes, limits: Limits, splits: Splits) -> None:
        self.limits = limits
        self.features = Features()
        self._splits = splits
        self._pepper = pepper
        self._keys = KnownKeys(pepper)
        self.delegated = DelegatedCredentials()
        self._salt_of = lru_cache(_MAX_SALTS)(self._make_salt)
        self._tables = {route.path: route.table(limits) for route in ROUTES}

    def precheck(self, catalogue: Catalogue, headers: RawHeaders, now_unix_s: float) -> Caller:
        """Check headers, announced size and key before a body is read, and return the caller; raises RequestRejected.

        The order of the checks is that of `recognise`, so that both reject alike.
        """
        if (announced_bytes(headers) or 0) > self.limits.body_bytes:
            raise RequestRejected(body_too_large(self.limits.body_bytes))
        read = read_headers(headers, "", self.limits)
        check_json_body(headers)
        return self.identify(catalogue, read, now_unix_s)

    def recognise(self, catalogue: Catalogue, raw: RawRequest, now_unix_s: float) -> Recognised:
        """Return parsed headers, caller, key and quotas; raises RequestRejected if headers or key are not valid."""
        read = read_headers(raw.headers, raw.request_id, self.limits)
        check_json_body(raw.headers)
        caller = self.identify(catalogue, read, now_unix_s)
        key, tier = catalogue.keys.get(caller.key_id), catalogue.quota_of(caller.tenant)
        return Recognised(read, caller, key, tier, within_key(tier, key))

    def admit(self, catalogue: Catalogue, route: Route, raw: RawRequest, known: Recognised) -> Admitted:
        """Return the admitted request; raises RequestRejected if one of the steps rejects it."""
        parsed = self.read_body(route, raw.body)
        caller = known.caller
        service_class = _service_class(known.read, parsed, caller)
        # the session, if the request names one; engines never get it, because tenants' ids must not meet there
        session = known.read.session or parsed.get("session_id") or parsed.get("prompt_cache_key") or None
        conversation, is_first_turn, new_bytes = conversation_of(caller.tenant, session, parsed, route.output)
        model = models.resolve(catalogue, caller, parsed, len(raw.body))
        if model.task not in route.tasks:
            raise models.wrong_task(model, route)
        tenant = catalogue.tenants[caller.tenant]
        if model.other_pools:
            tokens = self.features.lengths.prompt_tokens(model.pool, caller.tenant, len(raw.body))
            model = catalogue.placed(model, Placed(caller.tenant, tenant.tier, service_class, tokens))
        routing = catalogue.routing_for(model.pool)
        table = self._tables[route.path]
        ignored: tuple[str, ...] = ()
        if not table.passed.issuperset(parsed):
            ignored = fields.keep_allowed(parsed, table, routing.unknown_fields, route.path)
        admit_media(parsed, self._pepper, caller.tenant, self.limits.media_hosts)
        split: SplitUse | None = None
        if model.split is not None:
            sender = Sender(caller.tenant, session, raw.request_id)
            model, split = self._splits.place(model, model.split, sender, routing.session_ttl_s)
        elif session is not None:
            self._splits.remember_served(model, caller.tenant, session, routing.session_ttl_s)
        slid_turns = 0
        if route is CHAT and tenant.context_overflow != "refuse":
            slid_turns = self._slide(parsed, known, model)
        output, length_field, asked = route.output, "", 0
        if output is not None:
            length_field = field_in_force(parsed, output.names)
            asked = parsed.get(length_field) or 0
            if known.quota is not None:
                window_tokens = model.context_window_tokens
                apply_caps(parsed, output, length_field, known.quota, len(raw.body), window_tokens=window_tokens)
        # prevents one tenant's prefix cache from answering questions about another's: equal prompts have different
        # blocks
        salt = None if tenant.cache_salt == "shared" else self._salt_of(caller.tenant)
        features = self.features.build(
            parsed, route, model, caller.tenant, salt, length_field=length_field, requested_tokens=asked
        )
        former_tokens = 0 if slid_turns else None  # a chat without its beginning is another prompt
        if new_bytes is not None and not slid_turns and not is_first_turn:
            prompt_tokens, prompt_bytes = features.prompt_tokens, features.prompt_bytes
            former_tokens = max(0, prompt_tokens - prompt_tokens * new_bytes // max(1, prompt_bytes))
        stream = route.streams and parsed.get("stream") is True
        options = (parsed.get("stream_options") or {}) if stream and route.stream_options else {}
        include_usage = options.get("include_usage") is True
        return Admitted(
            request_id=raw.request_id,
            caller=caller,
            route=route,
            model=model,
            routing=routing,
            service_class=service_class,
            stream=stream,
            include_usage=include_usage,
            continuous_usage=include_usage and options.get("continuous_usage_stats") is True,
            deadline_ms=known.read.deadline_ms,
            features=features,
            upstream_body=_upstream_body(parsed, model, route, stream, salt),
            split=split,
            session=session,
            conversation=conversation,
            is_first_turn=is_first_turn,
            former_tokens=former_tokens,
            trace=known.read.trace,
            slid_turns=slid_turns,
            ignored_fields=ignored,
        )

    def read_body(self, route: Route, body: bytes) -> JsonObject:
        """Return the parsed body; raises RequestRejected (400) if its JSON or a field is wrong or one is missing."""
        parsed = parse_object(body, self.limits.json_depth, self.limits.json_values)
        fields.check_fields(parsed, self._tables[route.path])
        for group in route.required:
            if parsed.get(group[0]) is None and all(parsed.get(name) is None for name in group):
                raise bad_request(f"'{' or '.join(group)}' is required.", param=group[0])
        return parsed

    def model_for(self, catalogue: Catalogue, caller: Caller, route: Route, parsed: JsonObject) -> ResolvedModel:
        """Return the model that a checked body names; raises RequestRejected: 404, or 400 if it is of another route."""
        model = models.resolve(catalogue, caller, parsed, 0)
        if model.task not in route.tasks:
            raise models.wrong_task(model, route)
        return model

    def _slide(self, parsed: JsonObject, known: Recognised, model: ResolvedModel) -> int:
        """Drop the oldest turns of a chat so that it fits its context window; return the number of dropped turns."""
        room = context_overflow.headroom_tokens(parsed, CHAT_OUTPUT, known.quota, model.context_window_tokens)
        tenant, lengths = known.caller.tenant, self.features.lengths
        gone = context_overflow.overflow(
            parsed, room, lambda size_bytes: lengths.prompt_tokens(model.pool, tenant, size_bytes)
        )
        return context_overflow.slide(parsed, gone)

    def identify(self, catalogue: Catalogue, read: RequestHeaders, now_unix_s: float) -> Caller:
        """Return the caller if its key may call models; raises RequestRejected (401, 403)."""
        caller = self._keys.caller(catalogue, read.authorization, now_unix_s)
        if caller is None:
            caller = self.delegated.caller(catalogue, read.authorization, now_unix_s)
        if caller is None:
            raise unauthorized()
        if "inference" not in caller.scopes:
            raise forbidden("This key lacks the scope 'inference'.")
        return caller

    def authenticate(self, catalogue: Catalogue, read: RequestHeaders, now_unix_s: float) -> Caller:
        """Return the caller, with any scopes; delegated credentials are rejected. Raises RequestRejected (401)."""
        caller = self._keys.caller(catalogue, read.authorization, now_unix_s)
        if caller is None:
            raise unauthorized()
        return caller

    def _make_salt(self, tenant: TenantId) -> str:
        return hmac.digest(self._pepper, b"cache-salt\0" + tenant.encode(), hashlib.sha256).hex()[:32]


def _service_class(read: RequestHeaders, parsed: JsonObject, caller: Caller) -> ServiceClass:
    asked = read.service_class or _SERVICE_TIERS.get(parsed.get("service_tier") or "")
    if asked is None:
        return caller.max_class
    if _RANK[asked] < _RANK[caller.max_class]:
        raise forbidden(
            f"This key may request the class {caller.max_class} or a less urgent one, not {asked}.", "class_not_allowed"
        )
    return asked


def _upstream_body(
    parsed: JsonObject, model: ResolvedModel, route: Route, stream: bool, cache_salt: str | None
) -> bytes:
    """Return the body for the engine: the checked fields, with the engine's name for the model and the tenant's salt.

    A stream's usage is always requested, with every event, because tokens are counted from it: an event may have many
    tokens, and an aborted stream has no last event. The relay removes the usage for callers that did not request it.
    """
    parsed["model"] = model.engine_name
    if cache_salt is not None:
        parsed["cache_salt"] = cache_salt
    if stream and route.stream_options:
        parsed["stream_options"] = _COUNTED
    if route.prepare is not None:
        route.prepare(parsed)
    body = orjson.dumps(parsed)
    # orjson's bytes keep their buffer's size, 8 KiB for a body of 1 KiB, and a stream holds its body until it begins.
    return bytes(memoryview(body)) if stream else body
