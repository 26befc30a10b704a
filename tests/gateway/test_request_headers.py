"""Request headers: which are refused, which are understood, and which are never trusted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.gateway.errors import RequestRejected
from functions.gateway.http.headers import (
    RawHeaders,
    announced_bytes,
    check_headers,
    check_json_body,
    read_headers,
    request_id_of,
)
from tests.gateway.rig import limits

HOST = (b"host", b"shoal.test")
JSON = (b"content-type", b"application/json")


def refusal(headers: RawHeaders) -> tuple[int, str]:
    with pytest.raises(RequestRejected) as refused:
        read_headers(headers, "id", limits())
    return refused.value.answer.status, refused.value.answer.code


@pytest.mark.parametrize(
    ("expected", "headers"),
    [
        ((400, "missing_host"), []),
        ((400, "duplicate_header"), [HOST, (b"Host", b"other")]),
        ((400, "duplicate_header"), [HOST, (b"authorization", b"a"), (b"Authorization", b"b")]),
        ((400, "duplicate_header"), [HOST, JSON, JSON]),
        ((400, "duplicate_header"), [HOST, (b"x-request-id", b"a"), (b"x-request-id", b"a")]),
        ((400, "duplicate_header"), [HOST, (b"x-shoal-class", b"batch"), (b"x-shoal-class", b"interactive")]),
        ((400, "invalid_request"), [HOST, (b"x tenant", b"acme")]),
        ((400, "invalid_request"), [HOST, (b"x\xe9", b"acme")]),
        ((400, "invalid_request"), [HOST, (b"", b"acme")]),
        ((400, "invalid_request"), [HOST, (b"x" * 129, b"acme")]),
        ((431, "headers_too_large"), [HOST] + [(b"x-%d" % i, b"") for i in range(64)]),
        ((400, "invalid_request"), [HOST, (b"x-shoal-class", b"urgent")]),
        ((400, "invalid_request"), [HOST, (b"x-shoal-class", b"")]),
        *(
            ((400, "invalid_request"), [HOST, (b"x-shoal-deadline-ms", value)])
            for value in (b"", b"0", b"-1", b"1.5", b"1e3", b"+1", b"3600001", b"9" * 400, "²".encode("latin-1"))
        ),
    ],
)
def test_refuses(expected: tuple[int, str], headers: RawHeaders) -> None:
    assert refusal(headers) == expected


def test_known_headers_are_read() -> None:
    headers = [
        HOST,
        (b"Authorization", b"Bearer x"),
        (b"X-Shoal-Class", b" Batch "),
        (b"x-shoal-deadline-ms", b"1500"),
        (b"x-tenant", b"globex"),
    ]
    read = read_headers(headers, "id", limits())
    assert (read.authorization, read.service_class, read.deadline_ms) == ("Bearer x", "batch", 1500)
    assert not hasattr(read, "tenant"), "a tenant is never taken from a header"


@pytest.mark.parametrize(
    ("value", "session"),
    [
        (b"s-1", "s-1"),
        ("東京".encode(), "東京"),
        (("東" * 512).encode(), "東" * 512),
        ("café".encode("latin-1"), "café"),
        (b"", None),
    ],
)
def test_session_header_is_utf_8_or_latin_1(value: bytes, session: str | None) -> None:
    assert read_headers([HOST, (b"x-session-id", value)], "id", limits()).session == session


def test_a_session_is_at_most_512_characters() -> None:
    assert refusal([HOST, (b"x-session-id", ("東" * 513).encode())]) == (400, "invalid_request")


def test_number_of_headers_up_to_the_limit_is_accepted() -> None:
    assert len(list(check_headers([HOST] + [(b"x-%d" % i, b"") for i in range(63)], limits()))) == 64


@pytest.mark.parametrize("value", [b"abc", b"A-z.0_9:" + b"x" * 100, b"0"])
def test_echoes_a_wellformed_request_id(value: bytes) -> None:
    assert request_id_of([HOST, (b"X-Request-ID", value)]) == value.decode()


@pytest.mark.parametrize("value", [b"", b"a b", b"a\tb", b"\xe9", b"a\r\nx: y", b"x" * 129, b"<script>", b"a\n"])
def test_replaces_a_malformed_request_id(value: bytes) -> None:
    made = request_id_of([(b"x-request-id", value)])
    assert len(made) == 32 and made.isalnum()


@given(st.lists(st.tuples(st.sampled_from([b"x-request-id", b"X-Request-Id", b"x"]), st.binary(max_size=40))))
def test_request_id_is_always_safe_for_headers_and_logs(headers: RawHeaders) -> None:
    request_id = request_id_of(headers)
    assert 1 <= len(request_id) <= 128
    assert request_id.isascii() and request_id.isprintable() and " " not in request_id


@pytest.mark.parametrize("value", [b"application/json", b"Application/JSON; charset=utf-8", b" application/json ;a=b"])
def test_json_content_types_are_accepted(value: bytes) -> None:
    check_json_body([HOST, (b"Content-Type", value), (b"content-encoding", b"identity")])


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"content-type", b"text/plain")],
        [(b"content-type", b"application/jsonp")],
        [(b"content-type", b"application/x-www-form-urlencoded")],
        [JSON, (b"content-encoding", b"gzip")],
        [JSON, (b"Content-Encoding", b"identity, gzip")],
    ],
)
def test_other_media_are_refused(headers: RawHeaders) -> None:
    with pytest.raises(RequestRejected) as refused:
        check_json_body(headers)
    assert (refused.value.answer.status, refused.value.answer.code) == (415, "unsupported_media_type")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([HOST], 0),
        ([(b"Content-Length", b"12")], 12),
        ([(b"transfer-encoding", b"chunked")], None),
        ([(b"content-length", b"99999999999999999999")], 99999999999999999999),
    ],
)
def test_announced_length(headers: RawHeaders, expected: int | None) -> None:
    assert announced_bytes(headers) == expected


def test_header_names_with_an_underscore_are_ignored() -> None:
    """Tracing libraries send such names. Some proxies treat `_` as `-`, so the gateway reads nothing from them."""
    sent = [
        HOST,
        (b"langfuse_trace_id", b"1"),
        (b"x_session_id", b"other"),
        (b"X_Shoal_Class", b"vip"),
        (b"host_", b"x"),
    ]
    read = read_headers([*sent, (b"upgrade", b"h2c")], "r", limits())
    assert read.session is None and read.service_class is None
    assert [name for name, _ in check_headers(sent, limits())] == [b"host"]
