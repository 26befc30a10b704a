"""Hostile inputs from a seed: raw bytes for connections, and requests made from the fields of an OpenAPI document.

    rubbish(rng)                    bytes that are no request, or half of one, or two in one
    requests(document, …)(rng)      a request to one of its operations, with one wrong or odd thing in it

`sender` sends them, and `tests/drills/test_hostile_inputs.py` judges the results.
"""

import json
import random
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class HostileInput:
    data: bytes
    sort: str
    complete: (
        bool  # a request that is whole: it must be answered. Else: answered, closed, or waited for, and then closed
    )
    slow: bool = False  # sent a few bytes at a time


Making = Callable[[random.Random], HostileInput]
_ODD_TEXTS = (
    "", " ", "\0", "..", "../../etc/passwd", "%00", "%2e%2e%2f", "'; DROP TABLE models; --", "{{7*7}}", "${jndi:ldap://a}",
    "𝕏" * 40, "\u202e", "\ud800", "a" * 5000, "\r\nX-Injected: 1", "sha256:" + "0" * 64, "acme/bot", "acme/bot:stable",
    "base", "null", "-1", "1e999",
)  # fmt: skip
_ODD_NUMBERS = (0, -1, 1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**400, 0.1, -0.0, 1e308, 5e-324)
_HEADER_NAMES = (
    "Host", "Content-Type", "Content-Length", "Transfer-Encoding", "Connection", "Expect", "Upgrade", "Authorization",
    "X-Request-Id", "X-Session-ID", "X-Shoal-Class", "X-Shoal-Deadline-Ms", "If-Match", "X-Shoal-Fence", "Range",
    "Cookie", "Accept-Encoding", "Content-Encoding", "traceparent", "X-Forwarded-For", "Trailer", "TE",
    "Content-Disposition",
)  # fmt: skip
_HEADER_VALUES = (
    "", "chunked", "gzip", "identity, chunked", "close", "keep-alive, upgrade", "100-continue", "h2c", "websocket", "0",
    "-1", "+5", "0x10", "99999999999999999999", "1, 1", "*", '"1"', "application/json; charset=utf-16", "text/plain",
    "multipart/form-data", "multipart/form-data; boundary=" + "b" * 80, "Bearer", "Basic YTpi", "bytes=0-", "\xff\xfe",
    "a" * 9000, "batch", "00-" + "0" * 32 + "-" + "0" * 16 + "-00",
)  # fmt: skip
_METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT", "BREW", "G\0T", "get")


def rubbish(rng: random.Random) -> HostileInput:
    sort, make = rng.choice(_RUBBISH)
    data = make(rng)
    return HostileInput(data, sort, complete=False, slow=rng.random() < 0.03)


def _noise(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((1, 7, 100, 3000, 70_000)))


def _tls(rng: random.Random) -> bytes:
    kind = rng.choice((b"\x16\x03\x01", b"\x15\x03\x03", b"\x17\x03\x03", b"\x16\x03\x04", b"\x80\x2e\x01"))
    length = rng.choice((0, 5, 512, 16384, 65535))
    return kind + length.to_bytes(2, "big") + rng.randbytes(min(length, rng.choice((0, 40, 20_000))))


def _h2(rng: random.Random) -> bytes:
    frames = b"".join(
        rng.randbytes(1).rjust(3, b"\0")
        + bytes([rng.randrange(12), rng.randrange(256)])
        + rng.randbytes(rng.randrange(40))
        for _ in range(rng.randrange(6))
    )
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frames


def _smuggling(rng: random.Random) -> bytes:
    length = rng.choice((b"4", b"0", b"-1", b"1e1", b"4\r\nContent-Length: 5", b" 4", b"4, 4"))
    coding = rng.choice(
        (b"chunked", b"xchunked", b"chunked, identity", b"Chunked", b"\x0bchunked", b"chunked\r\nTransfer-Encoding: x")
    )
    body = rng.choice(
        (
            b"0\r\n\r\nGET /admin HTTP/1.1\r\nHost: a\r\n\r\n",
            b"5c\r\nGPOST / HTTP/1.1\r\n",
            b"ffffffffffffffffff\r\n",
            b"-1\r\n",
            b"1;" + b"a" * 9000,
        )
    )
    return (
        b"POST /v1/models HTTP/1.1\r\nHost: a\r\nContent-Length: "
        + length
        + b"\r\nTransfer-Encoding: "
        + coding
        + b"\r\n\r\n"
        + body
    )


def _half(rng: random.Random) -> bytes:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    whole = head + b"Content-Length: 9000\r\n\r\n{"
    return whole[: rng.randrange(1, len(whole))]


def _head(rng: random.Random) -> bytes:
    line = rng.choice(
        (b"GET / HTTP/1.1", b"GET / HTTP/1.0", b"GET / HTTP/9.9", b"GET  /  HTTP/1.1", b"GET /",
         b"GET http://a:99999/ HTTP/1.1",
         b"GET /\xff\xfe HTTP/1.1", b"GET /" + b"a" * rng.choice((10, 9000, 70_000)) + b" HTTP/1.1",
         b"OPTIONS * HTTP/1.1",
         b"CONNECT a:443 HTTP/1.1", b"GET /%zz?%&&==#x HTTP/1.1", b"\r\n\r\nGET / HTTP/1.1", b"GET /\0 HTTP/1.1")
    )  # fmt: skip
    count = rng.choice((0, 1, 3, 20, 400))
    headers = b"".join(_line(rng) for _ in range(count))
    ending = rng.choice((b"\r\n\r\n", b"\r\n\r\n", b"\n\n", b"\r\n", b"\r\n \r\n\r\n"))
    return line + b"\r\n" + headers + ending


def _line(rng: random.Random) -> bytes:
    name = rng.choice((*_HEADER_NAMES, "", "a b", "x\0y", "\xe9", "a" * 200, "X_Under"))
    value = rng.choice(_HEADER_VALUES)
    return (
        name.encode("latin-1")
        + rng.choice((b": ", b":", b" : ", b" "))
        + value.encode("latin-1")
        + rng.choice((b"\r\n",) * 8 + (b"\n", b"\r", b"\r\n\t"))
    )


def _pipelined(rng: random.Random) -> bytes:
    return b"".join(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n" for _ in range(rng.choice((2, 30, 300))))


def _other(rng: random.Random) -> bytes:
    return rng.choice(
        (b"SSH-2.0-OpenSSH_9.6\r\n", b"*1\r\n$4\r\nPING\r\n", b"\x00\x00\x00\x08\x04\xd2\x16\x2f", b"EHLO a\r\n",
         b"\r\n" * 9000,
         b"\x05\x01\x00", b"GET\n", b"\0" * 9000, b"HTTP/1.1 200 OK\r\n\r\n", b"PROXY TCP4 1.1.1.1 2.2.2.2 1 2\r\n")
    )  # fmt: skip


_RUBBISH: tuple[tuple[str, Callable[[random.Random], bytes]], ...] = (
    ("noise", _noise),
    ("TLS rubbish", _tls),
    ("h2 preface", _h2),
    ("smuggling", _smuggling),
    ("half a request", _half),
    ("odd head", _head),
    ("odd head", _head),
    ("pipelined", _pipelined),
    ("another protocol", _other),
)


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    schema: Mapping[str, Any]  # JSON body's schema; empty: no body


def operations(document: Mapping[str, Any]) -> list[Operation]:
    """Every operation of an OpenAPI document, with its JSON body's schema."""
    found = []
    for path, methods in sorted(document["paths"].items()):
        for method, operation in sorted(methods.items()):
            content = operation.get("requestBody", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema", {})
            found.append(Operation(method.upper(), path, _resolved(schema, document)))
    return found


def _resolved(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    found: Any = document
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return dict(found)


def requests(known: Sequence[Operation], bearers: Sequence[str], fitting: Mapping[str, Sequence[Any]]) -> Making:
    """Return a maker of requests to these operations. `fitting`: mostly valid values by name of a field or path
    part.
    """
    maker = _Maker(known, bearers, fitting)
    return maker.request


@dataclass(frozen=True, slots=True)
class _Maker:
    known: Sequence[Operation]
    bearers: Sequence[str]
    fitting: Mapping[str, Sequence[Any]]

    def request(self, rng: random.Random) -> HostileInput:
        operation = rng.choice(self.known)
        method = (
            operation.method
            if rng.random() < 0.93
            else rng.choice([m for m in _METHODS if m.isalpha() and m.isupper()])
        )
        headers = {"Host": "localhost", "Content-Type": "application/json"}
        if rng.random() < 0.9:
            headers["Authorization"] = f"Bearer {rng.choice(self.bearers)}"
        while rng.random() < 0.15:
            name = rng.choice(
                [
                    name
                    for name in _HEADER_NAMES
                    if name not in ("Content-Length", "Transfer-Encoding", "Expect", "Connection")
                ]
            )
            headers[name] = rng.choice([value for value in _HEADER_VALUES if len(value) < 6000])
        body = self._body(rng, operation) if method not in ("GET", "HEAD") or rng.random() < 0.05 else b""
        if body or method in ("POST", "PUT"):
            headers["Content-Length"] = str(len(body))
        lines = [f"{method} {self._target(rng, operation.path)} HTTP/1.1".encode("latin-1")]
        lines += [f"{name}: {value}".encode("latin-1") for name, value in headers.items()]
        data = b"\r\n".join(lines) + b"\r\n\r\n" + body
        return HostileInput(data, f"{operation.method} {operation.path}", complete=True)

    def _target(self, rng: random.Random, path: str) -> str:
        while "{" in path:
            before, _, rest = path.partition("{")
            name, _, after = rest.partition("}")
            path = (
                before
                + quote(str(self._value_for(rng, name.split(":")[0])).encode("utf-8", "surrogatepass"), safe="")
                + after
            )
        if rng.random() < 0.2:
            key = rng.choice(("limit", "after", "wait_s", "offset", "tenant", "from", "%00", "a[]"))
            path += f"?{key}={quote(str(self._odd(rng)).encode('utf-8', 'surrogatepass'), safe='')}"
        return path[:7000]

    def _body(self, rng: random.Random, operation: Operation) -> bytes:
        if rng.random() < 0.06:
            return rng.choice(
                (
                    b"",
                    b"{",
                    b"null",
                    b"[]",
                    b"{}",
                    b'{"a":1,"a":2}',
                    b"\xff\xfe{}",
                    b"[" * 9000,
                    b'{"a":' * 3000,
                    rng.randbytes(200),
                )
            )
        body = self._object(rng, operation.schema)
        for _ in range(rng.choice((0, 1, 1, 1, 2, 5))):
            self._spoil(rng, body)
        text = json.dumps(body, allow_nan=True)
        return text.replace("Infinity", "1e999").encode("utf-8", "surrogatepass")

    def _object(self, rng: random.Random, schema: Mapping[str, Any]) -> dict[str, Any]:
        required = set(schema.get("required", ()))
        names = [name for name in schema.get("properties", {}) if name in required or rng.random() < 0.15]
        return {name: self._value_for(rng, name) for name in names} | {
            name: self._value_for(rng, name) for name in required if name not in names
        }

    def _value_for(self, rng: random.Random, name: str) -> Any:
        good = self.fitting.get(name)
        if good is not None and rng.random() < 0.9:
            return json.loads(json.dumps(rng.choice(good)))
        return self._odd(rng)

    def _spoil(self, rng: random.Random, value: Any) -> None:
        """Replace or rename one value somewhere inside."""
        while True:
            if isinstance(value, dict) and value:
                key: Any = rng.choice(list(value))
            elif isinstance(value, list) and value:
                key = rng.randrange(len(value))
            else:
                if isinstance(value, dict):
                    value[self._name(rng)] = self._odd(rng)
                return
            if isinstance(value[key], dict | list) and value[key] and rng.random() < 0.7:
                value = value[key]
                continue
            if isinstance(value, dict) and rng.random() < 0.15:
                value[self._name(rng)] = value.pop(key)
            else:
                value[key] = self._odd(rng)
            return

    def _name(self, rng: random.Random) -> str:
        return rng.choice([*self.fitting, "".join(rng.choices(string.printable, k=rng.randrange(9)))])

    def _odd(self, rng: random.Random, depth: int = 0) -> Any:
        sort = rng.randrange(8 if depth < 3 else 5)
        if sort < 2:
            return rng.choice(_ODD_TEXTS)
        if sort == 2:
            return rng.choice(_ODD_NUMBERS)
        if sort == 3:
            return rng.choice((None, True, False, float("inf")))
        if sort == 4:
            return rng.choice(("user", "text", "function", "auto", "stop", [], {}, [[]], {"": {}}))
        if sort == 5:
            return [self._odd(rng, depth + 1) for _ in range(rng.choice((1, 3, 200)) if depth == 0 else 1)]
        return {self._name(rng): self._odd(rng, depth + 1) for _ in range(rng.randrange(1, 4))}
