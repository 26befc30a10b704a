"""Headers that the gateway reads or sends: name, type, meaning.

The OpenAPI document and the reference page are generated from these tables. `tests/gateway/test_openapi.py` compares
them with the names in the gateway's code and with real answers.
"""

from dataclasses import dataclass, field
from typing import Any

_INTEGER: dict[str, Any] = {"type": "integer", "minimum": 0}


@dataclass(frozen=True, slots=True)
class Header:
    name: str
    meaning: str
    schema: dict[str, Any] = field(default_factory=lambda: {"type": "string"})

    @property
    def component(self) -> str:
        return self.name.lower()


KEYS: tuple[Header, ...] = (
    Header("Authorization", "`Bearer <key>`: the tenant's key."),
    Header("x-api-key", "The key, as Anthropic's SDK sends it; `Authorization` takes precedence."),
)
REQUEST_ID = Header(
    "X-Request-Id",
    "Id of the request in answers, logs and traces; echoed if it is well-formed, otherwise replaced.",
    {"type": "string", "pattern": "^[A-Za-z0-9._:-]{1,128}$"},
)
SESSION = Header(
    "X-Session-ID",
    "Requests of one session prefer one replica and stay on one version. Also in the body, as `session_id` or "
    "`prompt_cache_key`. Stored as a hash only.",
    {"type": "string", "maxLength": 512},
)
BESIDE_THE_KEY: tuple[Header, ...] = (
    REQUEST_ID,
    SESSION,
    Header("traceparent", "W3C trace context: the spans of the request and its engine become part of that trace."),
    Header(
        "X-Shoal-Class",
        "Service class; also `service_tier` in the body (`priority` is interactive, `flex` is batch).",
        {"enum": ["interactive", "near-real-time", "batch"]},
    ),
    Header(
        "X-Shoal-Deadline-Ms",
        "Time that the caller waits, from the end of the request's head; at most 600 s.",
        {"type": "integer", "minimum": 1, "maximum": 3_600_000},
    ),
)
REQUEST: tuple[Header, ...] = (*KEYS, *BESIDE_THE_KEY)

ALWAYS: tuple[Header, ...] = (
    Header("x-request-id", "The request's id, on every answer."),
    Header("request-id", "The same on answers of `/v1/messages`, where its SDK expects it."),
)
SERVED: tuple[Header, ...] = (
    Header("x-shoal-model", "The model that answered, as `id@version`."),
    Header(
        "x-shoal-digest",
        "The sha256 digest of that version's artifact; of a base, of the weights that the replica has loaded.",
    ),
    Header("x-shoal-replica", "The replica that answered."),
    Header(
        "server-timing", "Milliseconds of `auth`, `queue`, `route`, `connect`, `ttft`; `load`, `wake` if one waited."
    ),
    Header("x-shoal-degraded", "`from=…;reason=…`: another model answered, by the pool's fallback policy."),
    Header("x-shoal-prefill", "`path=split;replica=…` or `path=one;why=…`, of pools that have a prefill pool."),
    Header("x-shoal-wake", "`waited=N`, or `expected=N` on a stream's early head: seconds; the pool was at zero."),
    Header("x-shoal-rollout", "`<id>; stage=N; group=candidate|control`: the channel is in a rollout."),
    Header("x-shoal-context", "`slid=N` or `summarised=N`: number of turns dropped from the prompt."),
    Header("x-shoal-ignored", "Unknown fields of the body, which were not sent to the engine."),
    Header("x-shoal-conversation", "`recalled=N`: earlier messages added; `not-kept`: this answer was not stored."),
    Header("x-shoal-tools", "`calls=N;rounds=M`: calls of server tools, and requests to the model."),
    Header(
        "traceresponse",
        "`00-<trace id>-<span id>-<flags>`: trace context of the request, created if the caller sent none.",
    ),
    Header("cache-control", "`no-store`."),
)
QUOTA: tuple[Header, ...] = tuple(
    Header(f"x-ratelimit-{what}-{of}", f"{meaning} {of}.", schema)
    for of in ("requests", "tokens")
    for what, meaning, schema in (
        ("limit", "The tenant's limit a minute, in", _INTEGER),
        ("remaining", "What is available now, in", _INTEGER),
        ("reset", "Time until the full limit is available again (`20ms`, `8.6s`, `1m0s`), of", {"type": "string"}),
    )
)
REFUSED: tuple[Header, ...] = (
    Header("retry-after", "Seconds after which to try again: with 429 and most 503.", _INTEGER),
    Header("retry-after-ms", "The same in milliseconds, with 429 by a quota.", _INTEGER),
    Header("www-authenticate", "`Bearer`, with 401."),
)
FILE_CONTENT: tuple[Header, ...] = (
    Header("content-disposition", "Name for saving a file's content."),
    Header("x-content-type-options", "`nosniff`, with a file's content."),
)
RESPONSE: tuple[Header, ...] = (*ALWAYS, *SERVED, *QUOTA, *REFUSED, *FILE_CONTENT)
