"""Headers that the gateway reads or sends: name, type, meaning.

The OpenAPI document and the reference page are generated from these tables. `tests/gateway/test_openapi.py` compares
them with the names in the gateway's code and with real answers.
"""

from dataclasses import dataclass, field
from typing import Any

_INTEGER: dict[str, Any] = {"type": "integer", "minimum": 0}


@dataclass(frozen=True, slots=True)
class HttpHeader:
    name: str
    meaning: str
    schema: dict[str, Any] = field(default_factory=lambda: {"type": "string"})

    @property
    def component(self) -> str:
        return self.name.lower()


KEYS: tuple[HttpHeader, ...] = (
    HttpHeader("Authorization", "`Bearer <key>`: the tenant's key."),
    HttpHeader("x-api-key", "The key, as Anthropic's SDK sends it; `Authorization` takes precedence."),
)
REQUEST_ID = HttpHeader(
    "X-Request-Id",
    "Id of the request in answers, logs and traces; echoed if it is well-formed, otherwise replaced.",
    {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$"},
)
SESSION = HttpHeader(
    "X-Session-ID",
    "Requests of one session prefer one replica and stay on one version. Also in the body, as `session_id` or "
    "`prompt_cache_key`. Stored as a hash only.",
    {"type": "string", "maxLength": 512},
)
BESIDE_THE_KEY: tuple[HttpHeader, ...] = (
    REQUEST_ID,
    SESSION,
    HttpHeader("traceparent", "W3C trace context: the spans of the request and its engine become part of that trace."),
    HttpHeader(
        "X-Shoal-Class",
        "Service class; also `service_tier` in the body (`priority` is interactive, `flex` is batch).",
        {"enum": ["interactive", "near-real-time", "batch"]},
    ),
    HttpHeader(
        "X-Shoal-Deadline-Ms",
        "Time that the caller waits, from the end of the request's head; at most 600 s.",
        {"type": "integer", "minimum": 1, "maximum": 3_600_000},
    ),
)
REQUEST: tuple[HttpHeader, ...] = (*KEYS, *BESIDE_THE_KEY)

ALWAYS: tuple[HttpHeader, ...] = (
    HttpHeader("x-request-id", "The request's id, on every answer."),
    HttpHeader("request-id", "The same on answers of `/v1/messages`, where its SDK expects it."),
)
SERVED: tuple[HttpHeader, ...] = (
    HttpHeader("x-shoal-model", "The model that answered, as `id@version`."),
    HttpHeader(
        "x-shoal-digest",
        "The sha256 digest of that version's artifact; of a base, of the weights that the replica has loaded.",
    ),
    HttpHeader("x-shoal-replica", "The replica that answered."),
    HttpHeader(
        "server-timing", "Milliseconds of `auth`, `queue`, `route`, `connect`, `ttft`; `load`, `wake` if one waited."
    ),
    HttpHeader("x-shoal-degraded", "`from=…;reason=…`: another model answered, by the pool's fallback policy."),
    HttpHeader("x-shoal-prefill", "`path=split;replica=…` or `path=one;why=…`, of pools that have a prefill pool."),
    HttpHeader("x-shoal-wake", "`waited=N`, or `expected=N` on a stream's early head: seconds; the pool was at zero."),
    HttpHeader("x-shoal-rollout", "`<id>; stage=N; group=candidate|control`: the channel is in a rollout."),
    HttpHeader("x-shoal-context", "`slid=N` or `summarised=N`: number of turns dropped from the prompt."),
    HttpHeader("x-shoal-ignored", "Unknown fields of the body, which were not sent to the engine."),
    HttpHeader("x-shoal-conversation", "`recalled=N`: earlier messages added; `not-kept`: this answer was not stored."),
    HttpHeader("x-shoal-tools", "`calls=N;rounds=M`: calls of server tools, and requests to the model."),
    HttpHeader(
        "traceresponse",
        "`00-<trace id>-<span id>-<flags>`: trace context of the request, created if the caller sent none.",
    ),
    HttpHeader("cache-control", "`no-store`."),
)
QUOTA: tuple[HttpHeader, ...] = tuple(
    HttpHeader(f"x-ratelimit-{what}-{of}", f"{meaning} {of}.", schema)
    for of in ("requests", "tokens")
    for what, meaning, schema in (
        ("limit", "The tenant's limit a minute, in", _INTEGER),
        ("remaining", "What is available now, in", _INTEGER),
        ("reset", "Time until the full limit is available again (`20ms`, `8.6s`, `1m0s`), of", {"type": "string"}),
    )
)
REFUSED: tuple[HttpHeader, ...] = (
    HttpHeader("retry-after", "Seconds after which to try again: with 429 and most 503.", _INTEGER),
    HttpHeader("retry-after-ms", "The same in milliseconds, with 429 by a quota.", _INTEGER),
    HttpHeader("www-authenticate", "`Bearer`, with 401."),
)
FILE_CONTENT: tuple[HttpHeader, ...] = (
    HttpHeader("content-disposition", "Name for saving a file's content."),
    HttpHeader("x-content-type-options", "`nosniff`, with a file's content."),
)
RESPONSE: tuple[HttpHeader, ...] = (*ALWAYS, *SERVED, *QUOTA, *REFUSED, *FILE_CONTENT)
