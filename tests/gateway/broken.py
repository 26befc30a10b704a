"""Broken requests and the answers that they must get: one table for every entry point.

Each row is (name, bytes, status, code); status 0 means that the row is legal and must reach the engine.
"""

import json
from typing import NamedTuple

from tests.gateway import rig, sse
from tests.gateway.client_rig import CHAT_BODY, chunked, get, post

COMPLETIONS = "/v1/completions"


class Broken(NamedTuple):
    name: str
    data: bytes
    status: int
    code: str


def chat(**fields: object) -> bytes:
    return post(sse.compact({"model": "acme/bot", "messages": [{"role": "user", "content": "x"}], **fields}))


def raw_head(*lines: bytes, body: bytes = CHAT_BODY) -> bytes:
    """Return a chat request with these header lines instead of the usual ones."""
    return b"POST /v1/chat/completions HTTP/1.1\r\n" + b"\r\n".join(lines) + b"\r\n\r\n" + body


HOST = b"Host: shoal.test"
TYPE = b"Content-Type: application/json"
KEY = b"Authorization: Bearer " + rig.ACME_KEY.encode()
LENGTH = b"Content-Length: %d" % len(CHAT_BODY)

BODIES = [
    Broken("empty body", post(b""), 400, "invalid_json"),
    Broken("no body and no length", raw_head(HOST, TYPE, KEY, body=b""), 400, "invalid_json"),
    Broken("cut off", post(b'{"model":'), 400, "invalid_json"),
    Broken("not JSON", post(b"model=acme/bot"), 400, "invalid_json"),
    Broken("an array", post(b"[]"), 400, "invalid_json"),
    Broken("a string", post(b'"x"'), 400, "invalid_json"),
    Broken("null", post(b"null"), 400, "invalid_json"),
    Broken("NaN", post(CHAT_BODY[:-1] + b',"temperature":NaN}'), 400, "invalid_json"),
    Broken("Infinity", post(CHAT_BODY[:-1] + b',"temperature":Infinity}'), 400, "invalid_json"),
    Broken("1e400", post(CHAT_BODY[:-1] + b',"temperature":1e400}'), 400, "invalid_json"),
    Broken("5,000 digits", post(CHAT_BODY[:-1] + b',"seed":' + b"9" * 5000 + b"}"), 400, "invalid_json"),
    Broken("duplicate model", post(CHAT_BODY[:-1] + b',"model":"globex/bot"}'), 400, "duplicate_key"),
    Broken("duplicate by escape", post(CHAT_BODY[:-1] + b',"mo\\u0064el":"globex/bot"}'), 400, "duplicate_key"),
    Broken("duplicate deep inside", post(CHAT_BODY[:-1] + b',"a":{"b":[{"c":1,"c":2}]}}'), 400, "duplicate_key"),
    Broken("byte order mark", post(b"\xef\xbb\xbf" + CHAT_BODY), 400, "invalid_json"),
    Broken("UTF-16", post(CHAT_BODY.decode().encode("utf-16")), 400, "invalid_json"),
    Broken("bad UTF-8", post(CHAT_BODY.replace(b"hi", b"\xff")), 400, "invalid_json"),
    Broken("overlong UTF-8", post(CHAT_BODY.replace(b"hi", b"\xc0\xaf")), 400, "invalid_json"),
    Broken("lone surrogate", post(CHAT_BODY.replace(b"hi", b"\\ud800")), 400, "invalid_json"),
    Broken("raw NUL", post(CHAT_BODY.replace(b"hi", b"\x00")), 400, "invalid_json"),
    Broken("65 deep", post(CHAT_BODY[:-1] + b',"a":' + b"[" * 64 + b"]" * 64 + b"}"), 400, "invalid_json"),
    Broken("100,000 deep", post(b'{"a":' + b"[" * 100_000), 400, "invalid_json"),
    Broken("a million objects", post(b'{"a":[' + b"{}," * 999_999 + b"{}]}"), 400, "invalid_json"),
    Broken("300,000 keys", post(b"{" + b",".join(b'"%d":1' % i for i in range(300_000)) + b"}"), 400, "invalid_json"),
    Broken("no model", post(b'{"messages":[{"role":"user","content":"x"}]}'), 400, "invalid_request"),
    Broken("model is a number", chat(model=5), 400, "invalid_request"),
    Broken("model is null", chat(model=None), 400, "invalid_request"),
    Broken("no messages", post(b'{"model":"acme/bot"}'), 400, "invalid_request"),
    Broken("no messages at all", chat(messages=[]), 400, "invalid_request"),
    Broken("2,049 messages", chat(messages=[{"role": "user", "content": "x"}] * 2049), 400, "invalid_request"),
    Broken("a message that is a string", chat(messages=["x"]), 400, "invalid_request"),
    Broken("content that is a number", chat(messages=[{"role": "user", "content": 5}]), 400, "invalid_request"),
    Broken("stream is a string", chat(stream="true"), 400, "invalid_request"),
    Broken("max_tokens -1", chat(max_tokens=-1), 400, "invalid_request"),
    Broken("max_tokens 2**63", chat(max_tokens=2**63), 400, "invalid_request"),
    Broken("max_tokens true", chat(max_tokens=True), 400, "invalid_request"),
    Broken("n 16384", chat(n=16384), 400, "invalid_request"),
    Broken("temperature is a string", chat(temperature="hot"), 400, "invalid_request"),
    Broken("five stop strings", chat(stop=["a"] * 5), 400, "invalid_request"),
    Broken("129 tools", chat(tools=[{}] * 129), 400, "invalid_request"),
    Broken("301 biases", chat(logit_bias={str(i): 1 for i in range(301)}), 400, "invalid_request"),
    Broken("priority", chat(priority=-100), 400, "invalid_request"),
    Broken("kv_transfer_params", chat(kv_transfer_params={"do_remote_decode": True}), 400, "invalid_request"),
    Broken("empty prompt", post(b'{"model":"acme/bot","prompt":""}', COMPLETIONS), 400, "invalid_request"),
    Broken("mixed prompts", post(b'{"model":"acme/bot","prompt":["a",1]}', COMPLETIONS), 400, "invalid_request"),
    Broken("chunked and broken JSON", post(chunked(b'{"a"', b":"), transfer_encoding="chunked"), 400, "invalid_json"),
]

CALLERS = [
    Broken("no key", post(key=None), 401, "invalid_api_key"),
    Broken("a malformed key", post(key="sk-12345"), 401, "invalid_api_key"),
    Broken("a key with a typing error", post(key=rig.ACME_KEY[:-1] + "!"), 401, "invalid_api_key"),
    Broken("a revoked key", post(key=rig.REVOKED_KEY), 401, "invalid_api_key"),
    Broken("an expired key", post(key=rig.EXPIRED_KEY), 401, "invalid_api_key"),
    Broken("a known id with another secret", post(key=rig.IMPOSTOR_KEY), 401, "invalid_api_key"),
    Broken("Basic", raw_head(HOST, TYPE, LENGTH, b"Authorization: Basic YTpi"), 401, "invalid_api_key"),
    Broken("a key without the scope", post(key=rig.READER_KEY), 403, "insufficient_permissions"),
    Broken("a class above the key's", post(key=rig.BATCH_KEY, x_shoal_class="interactive"), 403, "class_not_allowed"),
    Broken("another tenant's model", chat(model="globex/bot"), 404, "model_not_found"),
    Broken("a model that nobody has", chat(model="acme/none"), 404, "model_not_found"),
    Broken("an engine's name", chat(model=rig.BOT_V1), 404, "model_not_found"),
    Broken("a model with a line break", chat(model="acme/bot\r\nx: y"), 404, "model_not_found"),
    Broken("markup for a model", chat(model="<script>alert(1)</script>"), 404, "model_not_found"),
]

HEADERS = [
    Broken("no Host", raw_head(TYPE, KEY, LENGTH), 400, "missing_host"),
    Broken("two Hosts", raw_head(HOST, HOST, TYPE, KEY, LENGTH), 400, "duplicate_header"),
    Broken("two keys", raw_head(HOST, TYPE, KEY, KEY, LENGTH), 400, "duplicate_header"),
    Broken("two media types", raw_head(HOST, TYPE, TYPE, KEY, LENGTH), 400, "duplicate_header"),
    Broken("two request ids", post(x_request_id="a")[:-2] + b"", 400, "duplicate_header"),
    Broken("no media type", raw_head(HOST, KEY, LENGTH), 415, "unsupported_media_type"),
    Broken("a form", raw_head(HOST, b"Content-Type: multipart/form-data", KEY, LENGTH), 415, "unsupported_media_type"),
    Broken("gzip", post(content_encoding="gzip"), 415, "unsupported_media_type"),
    Broken("an unknown class", post(x_shoal_class="vip"), 400, "invalid_request"),
    Broken("a deadline of zero", post(x_shoal_deadline_ms="0"), 400, "invalid_request"),
    Broken("a deadline of words", post(x_shoal_deadline_ms="soon"), 400, "invalid_request"),
    Broken("70 headers", post(**{f"x{i}": "y" for i in range(70)}), 431, "headers_too_large"),
    Broken("a header of 17 KB", post(x_big="x" * 17_000), 431, "headers_too_large"),
    Broken("a header of 70 KB", post(x_big="x" * 70_000), 431, "headers_too_large"),
    Broken("2,000 headers", post(**{f"x{i}": "y" for i in range(2000)}), 431, "headers_too_large"),
    Broken("a URL of 17 KB", post(path="/" + "x" * 17_000), 431, "headers_too_large"),
    Broken("an announced gigabyte", post(b"", length=2**30), 413, "body_too_large"),
    Broken(
        "a websocket",
        get("/v1/chat/completions", connection="upgrade", upgrade="websocket"),
        405,
        "method_not_allowed",
    ),
]
HEADERS[4] = HEADERS[4]._replace(data=raw_head(HOST, TYPE, KEY, LENGTH, b"X-Request-Id: a", b"X-Request-Id: b"))

HTTP = [
    Broken("not HTTP", b"hello\r\n\r\n", 400, "invalid_http"),
    Broken("a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 50, 400, "invalid_http"),
    Broken("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "invalid_http"),
    Broken(
        "length and chunks", post(chunked(b"{}"), transfer_encoding="chunked", content_length="5"), 400, "invalid_http"
    ),
    Broken("two lengths", raw_head(HOST, TYPE, KEY, LENGTH, LENGTH), 400, "invalid_http"),
    Broken("two unequal lengths", raw_head(HOST, TYPE, KEY, LENGTH, b"Content-Length: 5"), 400, "invalid_http"),
    Broken("a negative length", raw_head(HOST, TYPE, KEY, b"Content-Length: -5"), 400, "invalid_http"),
    Broken("a length in words", raw_head(HOST, TYPE, KEY, b"Content-Length: ten"), 400, "invalid_http"),
    Broken("a length without end", raw_head(HOST, TYPE, KEY, b"Content-Length: " + b"9" * 30), 400, "invalid_http"),
    Broken("an unknown transfer coding", raw_head(HOST, TYPE, KEY, b"Transfer-Encoding: x"), 400, "invalid_http"),
    Broken("chunked twice", raw_head(HOST, TYPE, KEY, *[b"Transfer-Encoding: chunked"] * 2), 400, "invalid_http"),
    Broken("a chunk size that is none", post(b"zz\r\n", transfer_encoding="chunked"), 400, "invalid_http"),
    Broken("bare line feeds", b"POST /v1/chat/completions HTTP/1.1\nHost: x\n\n", 400, "invalid_http"),
    Broken("a folded header", raw_head(HOST, b" folded", KEY), 400, "invalid_http"),
    Broken("a space before the colon", raw_head(b"Host : x", KEY), 400, "invalid_http"),
    Broken("NUL in a header", raw_head(b"Host: a\x00b", KEY), 400, "invalid_http"),
    Broken("a control character in a header", raw_head(b"Host: a\x01b", KEY), 400, "invalid_http"),
    Broken("a space in the path", post(path="/v1/chat completions"), 400, "invalid_http"),
]

PATHS = [
    Broken("an unknown path", get("/nope"), 404, "not_found"),
    Broken("a Host that is no host", b"GET /nope HTTP/1.1\r\nHost: [\r\n\r\n", 404, "not_found"),
    Broken("dots", post(path="/v1/x/../chat/completions"), 404, "not_found"),
    Broken("encoded dots", post(path="/v1/%2e%2e/chat/completions"), 404, "not_found"),
    Broken("an encoded slash", post(path="/v1/chat%2fcompletions"), 404, "not_found"),
    Broken("an encoded letter", post(path="/v1/%63hat/completions"), 404, "not_found"),
    Broken("two slashes", post(path="//v1/chat/completions"), 404, "not_found"),
    Broken("a trailing slash", post(path="/v1/chat/completions/"), 404, "not_found"),
    Broken("a semicolon", post(path="/v1/chat/completions;x"), 404, "not_found"),
    Broken("an encoded NUL", post(path="/v1/chat/completions%00"), 404, "not_found"),
    Broken("a backslash", post(path="/v1\\chat\\completions"), 404, "not_found"),
    Broken("mixed case", post(path="/V1/chat/completions"), 404, "not_found"),
    Broken("encoded twice", get("/v1/models/acme%252Fbot"), 404, "not_found"),
    Broken("dots below models", get("/v1/models/..%2f..%2fmetrics"), 404, "not_found"),
    Broken("an API page", get("/docs"), 404, "not_found"),
    Broken("the OpenAPI document, posted", post(path="/openapi.json"), 405, "method_not_allowed"),
    Broken("metrics on this port", get("/metrics"), 404, "not_found"),
    Broken("GET of a hot path", get("/v1/chat/completions"), 405, "method_not_allowed"),
    Broken("PUT of a hot path", post(method="PUT"), 405, "method_not_allowed"),
    Broken("OPTIONS of a hot path", post(b"", method="OPTIONS"), 405, "method_not_allowed"),
    Broken("POST to models", post(path="/v1/models"), 405, "method_not_allowed"),
    Broken("models without a key", get("/v1/models"), 401, "invalid_api_key"),
    Broken(
        "an unknown model", get("/v1/models/acme/x", authorization=f"Bearer {rig.ACME_KEY}"), 404, "model_not_found"
    ),
    Broken("tokenize without a prompt", post(b'{"model":"acme/bot"}', "/v1/tokenize"), 400, "invalid_request"),
    Broken("tokenize without a key", post(b"{}", "/v1/tokenize", key=None), 401, "invalid_api_key"),
    Broken(
        "detokenize of words",
        post(json.dumps({"model": "acme/bot", "tokens": "abc"}).encode(), "/v1/detokenize"),
        400,
        "invalid_request",
    ),
]

ALL = BODIES + CALLERS + HEADERS + HTTP + PATHS
