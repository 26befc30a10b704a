"""Cross-origin requests: origins whose pages may call the gateway from a browser, and headers that they may read.

No origin is allowed by default, because a page that calls with a key exposes the key to its visitors. If an
installation sets origins (`SHOAL_GATEWAY_CORS_ORIGINS`), preflights are answered without a key. Answers, including
rejections, then allow the page to read them and the headers that clients need. Cookies are not used: callers send a
key.

`asgi` applies it to every request; the fast lane hands over connections whose requests have an Origin header.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

Headers = list[tuple[bytes, bytes]]

_ORIGIN = re.compile(r"https?://(?:\[[0-9a-f:]+\]|[a-z0-9.-]+)(?::\d{1,5})?")
ORIGINS_MAX = 100
_METHODS = b"GET, POST, PUT, DELETE, HEAD, OPTIONS"
_ASKED_HEADERS = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, -]{0,1024}")
_REMEMBERED_S = b"7200"  # the longest time that browsers accept
_EXPOSED = (
    b"x-request-id, request-id, retry-after, retry-after-ms, server-timing, traceresponse, x-shoal-model, "
    b"x-shoal-digest, content-disposition, x-shoal-prefill, "
    b"x-shoal-replica, x-shoal-degraded, x-shoal-wake, x-shoal-rollout, x-shoal-context, x-shoal-ignored, "
    b"x-shoal-conversation, x-shoal-tools, x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
    b"x-ratelimit-reset-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens"
)


@dataclass(frozen=True, slots=True)
class Origins:
    """Allowed origins. If there are none, answers have no CORS headers."""

    named: frozenset[bytes] = frozenset()
    every: bool = False

    @classmethod
    def parse(cls, text: str) -> "Origins":
        """Parse a setting: origins separated by commas, or `*`. Raise ValueError with the problem."""
        names = [name.strip().rstrip("/").lower() for name in text.split(",") if name.strip()]
        if len(names) > ORIGINS_MAX:
            raise ValueError(f"{len(names)} origins; at most {ORIGINS_MAX}")
        for name in names:
            if name != "*" and _ORIGIN.fullmatch(name) is None:
                raise ValueError(f"{name[:100]!r} is not an origin: write https://host, https://host:port or *")
        return cls(frozenset(name.encode() for name in names if name != "*"), "*" in names)

    def __bool__(self) -> bool:
        return self.every or bool(self.named)

    def answer_headers(self, request: Iterable[tuple[bytes, bytes]]) -> Headers:
        """Return the CORS headers of an answer; none without configured origins.

        Otherwise `vary` is always set, because caches must separate origins.
        """
        if not self:
            return []
        origin = _value(request, b"origin")
        allowed = self._allowed(origin)
        return [(b"vary", b"origin"), *([*allowed, (b"access-control-expose-headers", _EXPOSED)] if allowed else [])]

    def preflight(self, method: str, request: Headers) -> Headers | None:
        """Return the headers for a preflight, or None if this is not a preflight or the origin is not allowed."""
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
