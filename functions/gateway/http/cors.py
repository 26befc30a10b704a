"""Cross-origin requests: which pages of other origins a browser may let call the gateway, and what these may read.

Nobody's by default: a page that calls with a key shows it to whoever opens the page. Where an installation names
origins (`SHOAL_GATEWAY_CORS_ORIGINS`), preflights are answered here without a key, and answers say that they may be
read, refusals too, with the headers that clients need. Cookies are not involved: callers show a key.

Neighbours: `asgi` asks it of every request; the fast lane hands over connections whose requests name an origin.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

Headers = list[tuple[bytes, bytes]]

_ORIGIN = re.compile(r"https?://(?:\[[0-9a-f:]+\]|[a-z0-9.-]+)(?::\d{1,5})?")
ORIGINS_MAX = 100
_METHODS = b"GET, POST, PUT, DELETE, HEAD, OPTIONS"
_ASKED_HEADERS = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{0,1024}")
_REMEMBERED_S = b"7200"  # what browsers keep at most
_EXPOSED = (
    b"x-request-id, request-id, retry-after, retry-after-ms, server-timing, traceresponse, x-shoal-model, "
    b"x-shoal-digest, content-disposition, x-shoal-prefill, "
    b"x-shoal-replica, x-shoal-degraded, x-shoal-wake, x-shoal-rollout, x-shoal-context, x-shoal-ignored, "
    b"x-shoal-conversation, x-shoal-tools, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
    b"x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)


@dataclass(frozen=True, slots=True)
class Origins:
    """Those that may; none: nothing is said of origins at all."""

    named: frozenset[bytes] = frozenset()
    every: bool = False

    @classmethod
    def of(cls, text: str) -> "Origins":
        """From a setting: origins with commas between, or `*`. ValueError says what is wrong with it."""
        names = [name.strip().rstrip("/").lower() for name in text.split(",") if name.strip()]
        if len(names) > ORIGINS_MAX:
            raise ValueError(f"{len(names)} origins; at most {ORIGINS_MAX}")
        for name in names:
            if name != "*" and _ORIGIN.fullmatch(name) is None:
                raise ValueError(f"{name[:100]!r} is no origin: write https://host, with a port where it has one, or *")
        return cls(frozenset(name.encode() for name in names if name != "*"), "*" in names)

    def __bool__(self) -> bool:
        return self.every or bool(self.named)

    def answer_headers(self, request: Iterable[tuple[bytes, bytes]]) -> Headers:
        """What an answer says besides. A cache has to know that it depends on the origin, whichever asked."""
        if not self:
            return []
        origin = _value(request, b"origin")
        allowed = self._allowed(origin)
        return [(b"vary", b"origin"), *([*allowed, (b"access-control-expose-headers", _EXPOSED)] if allowed else [])]

    def preflight(self, method: str, request: Headers) -> Headers | None:
        """The answer's headers; None where this is no preflight, or one of an origin that may not."""
        if method != "OPTIONS" or not self or _value(request, b"access-control-request-method") is None:
            return None
        allowed = self._allowed(_value(request, b"origin"))
        asked = _value(request, b"access-control-request-headers") or b""
        if not allowed or _ASKED_HEADERS.fullmatch(asked) is None:
            return None
        return [
            *allowed,
            (b"vary", b"origin, access-control-request-headers"),
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-allow-headers", asked or b"authorization, content-type"),
            (b"access-control-max-age", _REMEMBERED_S),
        ]

    def _allowed(self, origin: bytes | None) -> Headers:
        if origin is None or not (self.every or origin.lower() in self.named):
            return []
        return [(b"access-control-allow-origin", b"*" if self.every else origin)]


def names_origin(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(len(name) == 6 and name.lower() == b"origin" for name, _ in headers)


def _value(headers: Iterable[tuple[bytes, bytes]], wanted: bytes) -> bytes | None:
    return next((value for name, value in headers if name.lower() == wanted), None)
