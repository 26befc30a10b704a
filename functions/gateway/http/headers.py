"""Headers of a request: those that cause a rejection, and the few that have a meaning.

A tenant is never read from a header. No header of the client reaches an engine, so clients cannot set the platform's
internal headers: the upstream request has only headers that the gateway writes.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import msgspec

from functions.api.snapshot import ServiceClass
from functions.gateway import errors
from functions.gateway.errors import RequestRejected, bad_request
from functions.gateway.limits import Limits

RawHeaders = list[tuple[bytes, bytes]]

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_HEADER_NAME = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")  # RFC 9110's token
_MAX_DEADLINE_MS = 3_600_000
_CLASSES = ("interactive", "near-real-time", "batch")
_ONCE = frozenset(
    {
        b"host",
        b"authorization",
        b"x-api-key",
        b"content-type",
        b"content-length",
        b"content-encoding",
        b"x-request-id",
        b"x-shoal-class",
        b"x-shoal-deadline-ms",
        b"x-session-id",
    }
)
_READ = frozenset(
    {b"authorization", b"x-api-key", b"x-shoal-class", b"x-shoal-deadline-ms", b"x-session-id", b"traceparent"}
)
# W3C Trace Context; ids of zeros and version ff are invalid.
_TRACEPARENT = re.compile(
    rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2}).*", re.DOTALL
)
_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
# Usual header names as clients spell them, found in one look-up; lowering and matching take 0.3 us each.
_USUAL = (
    *_ONCE,
    *(b"accept", b"accept-encoding", b"accept-language", b"cache-control", b"connection", b"origin", b"referer"),
    *(b"user-agent", b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip"),
    *(b"traceparent", b"tracestate", b"via", b"x-stainless-arch", b"x-stainless-async", b"x-stainless-lang"),
    *(b"x-stainless-os", b"x-stainless-package-version", b"x-stainless-retry-count", b"x-stainless-runtime"),
    *(b"x-stainless-runtime-version", b"x-stainless-read-timeout", b"x-stainless-timeout"),
)
_SPELLINGS = {spelling: name for name in _USUAL for spelling in (name, name.title())}


class TraceContext(msgspec.Struct, frozen=True, gc=False):
    """Trace position of a request: the caller's, or of a trace that begins here."""

    trace_id: str
    span_id: str  # the gateway's span; empty: not recorded
    parent_span_id: str  # the caller's span; empty: none sent
    traceparent: bytes  # header for downstream calls


NO_TRACE = TraceContext("", "", "", b"00-%032d-%016d-00" % (0, 0))  # an invalid traceparent, which receivers ignore


@dataclass(slots=True)
class RequestHeaders:
    authorization: str | None = None
    request_id: str = ""
    service_class: ServiceClass | None = None
    deadline_ms: int | None = None
    session: str | None = None
    trace: TraceContext = NO_TRACE

    def is_late(self, since_s: float) -> bool:
        """Return True if the caller's deadline has passed `since_s` after the request began to arrive; else False."""
        return self.deadline_ms is not None and since_s * 1000.0 >= self.deadline_ms


def request_id_of(headers: RawHeaders) -> str:
    """Return the caller's x-request-id if it is well-formed, else a new random one of 32 hex digits."""
    for name, value in headers:
        if len(name) == 12 and name.lower() == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return value.decode()
    return os.urandom(16).hex()


def read_headers(headers: RawHeaders, request_id: str, limits: Limits) -> RequestHeaders:
    """Return what the headers say: key, class, deadline, session, trace. Raise RequestRejected if one is malformed.

    A malformed `traceparent` is ignored.
    """
    found = RequestHeaders(request_id=request_id)
    api_key: str | None = None
    parent: re.Match[bytes] | None = None  # a malformed `traceparent` is ignored (W3C)
    for name, value in check_headers(headers, limits):
        if name not in _READ:
            continue
        if name == b"authorization":
            found.authorization = value.decode("latin-1")
        elif name == b"x-api-key":  # Anthropic's SDK sends the key in this header
            api_key = "Bearer " + value.decode("latin-1")
        elif name == b"x-shoal-class":
            found.service_class = _service_class(value)
        elif name == b"x-shoal-deadline-ms":
            found.deadline_ms = _deadline_ms(value)
        elif name == b"x-session-id":
            found.session = _session(value, limits)
        elif name == b"traceparent":
            parent = _TRACEPARENT.fullmatch(value)
    found.trace = _trace(parent, request_id, limits.sampled_traces)
    if found.authorization is None:
        found.authorization = api_key
    return found


def _trace(parent: re.Match[bytes] | None, request_id: str, sampled: int) -> TraceContext:
    """Return the trace context. `sampled` of 2^32 traces that begin here are recorded; for others the caller decides.

    A request id that was made here serves as the trace id too.
    """
    if parent is not None:
        trace_id, caller, flags = parent[1].decode(), parent[2].decode(), parent[3]
        if not sampled or not int(flags, 16) & 1:
            return TraceContext(trace_id, "", caller, b"00-%b-%b-%b" % parent.groups())
        span_id = os.urandom(8).hex()
        return TraceContext(trace_id, span_id, caller, f"00-{trace_id}-{span_id}-01".encode())
    trace_id = request_id if _TRACE_ID.fullmatch(request_id) is not None else os.urandom(16).hex()
    if sampled and int(trace_id[:8], 16) < sampled:
        span_id = os.urandom(8).hex()
        return TraceContext(trace_id, span_id, "", f"00-{trace_id}-{span_id}-01".encode())
    return TraceContext(trace_id, "", "", f"00-{trace_id}-{trace_id[16:]}-00".encode())


def check_headers(headers: RawHeaders, limits: Limits) -> Iterable[tuple[bytes, bytes]]:
    """Return the headers with lower-case names, without those that have `_` in their names.

    Raise RequestRejected for too many or malformed headers, a duplicate of one that may occur once, or no Host.
    """
    if len(headers) > limits.header_count:
        raise RequestRejected(errors.headers_too_large(f"The request has over {limits.header_count} headers."))
    seen: set[bytes] = set()
    checked: RawHeaders = []
    for raw_name, value in headers:
        name = _SPELLINGS.get(raw_name) or _name(raw_name)
        if b"_" in name:  # proxies and CGI confuse it with `-`, so the header is ignored
            continue
        if name in _ONCE:
            if name in seen:
                raise bad_request(f"The header {name.decode()} may occur only once.", code="duplicate_header")
            seen.add(name)
        checked.append((name, value))
    if b"host" not in seen:
        raise bad_request("The Host header is missing.", code="missing_host")
    return checked


def _name(raw_name: bytes) -> bytes:
    name = raw_name.lower()
    if _HEADER_NAME.fullmatch(name) is None:
        raise bad_request("A header name has invalid characters; use letters, digits, '-' and '_'.")
    return name


def check_json_body(headers: RawHeaders) -> None:
    """Raise RequestRejected (415) if the body is not declared as plain JSON without content encoding."""
    content_type = b""
    for name, value in headers:
        if len(name) == 12 and name.lower() == b"content-type":
            content_type = value if value == b"application/json" else value.split(b";", 1)[0].strip().lower()
        elif (
            len(name) == 16 and name.lower() == b"content-encoding" and value.strip().lower() not in (b"", b"identity")
        ):
            raise RequestRejected(
                errors.unsupported_media_type(
                    "Encoded bodies are not accepted; send plain JSON without Content-Encoding."
                )
            )
    if content_type != b"application/json":
        raise RequestRejected(errors.unsupported_media_type("Send the body with 'Content-Type: application/json'."))


def announced_bytes(headers: RawHeaders) -> int | None:
    """Return the body's length in bytes according to its head: 0 if that names none, None for a chunked body."""
    length: int | None = 0
    for name, value in headers:
        if len(name) == 17 and name.lower() == b"transfer-encoding":
            return None
        if (
            len(name) == 14 and name.lower() == b"content-length" and value.isdigit() and len(value) <= 20
        ):  # the parser has rejected other values
            length = int(value)
    return length


def _service_class(value: bytes) -> ServiceClass:
    text = value.decode("latin-1").strip().lower()
    if text not in _CLASSES:
        raise bad_request(f"X-Shoal-Class must be one of {', '.join(_CLASSES)}.", param="X-Shoal-Class")
    return cast(ServiceClass, text)


def _session(value: bytes, limits: Limits) -> str | None:
    """Return the session id, or None if it is empty. Any text is allowed, because it is only hashed.

    It is decoded as UTF-8, like `session_id` in a body, so that both name the same session. Invalid UTF-8 is decoded
    as Latin-1.
    """
    try:
        session = value.decode()
    except UnicodeDecodeError:
        session = value.decode("latin-1")
    if len(session) > limits.session_chars:
        raise bad_request(f"X-Session-ID is longer than {limits.session_chars} characters.", param="X-Session-ID")
    return session or None


def _deadline_ms(value: bytes) -> int:
    text = value.decode("latin-1").strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and 1 <= int(text) <= _MAX_DEADLINE_MS):
        raise bad_request(
            f"X-Shoal-Deadline-Ms must be an integer from 1 to {_MAX_DEADLINE_MS}.", param="X-Shoal-Deadline-Ms"
        )
    return int(text)
