"""One user's connections: send requests and read their streams line by line, within limits of time and bytes.

geventhttpclient, the base of Locust's fast client, needs a fifth of httpx's CPU time for a stream, so that a load
generator on two cores does not measure itself. SSL_CERT_FILE names the certificates to trust.
"""

import json
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gevent
from geventhttpclient.client import HTTPClient
from geventhttpclient.response import HTTPParseError, HTTPSocketPoolResponse
from geventhttpclient.url import URL

from loadtests.locust.answers import Stream, WrongAnswer, error_code

MOST_BYTES = 64 * 1024 * 1024  # per answer
CONNECT_S = 10.0


class Unreachable(Exception):
    """A request without a complete answer; the text names one of a few kinds."""


@dataclass(slots=True)
class Reply:
    status: int
    headers: dict[str, str]
    took_s: float = 0.0
    body: bytes = b""
    stream: Stream | None = None
    code: str = field(default="")  # error code

    @property
    def degraded(self) -> bool:
        """True if another model answers and the gateway says so."""
        return "x-shoal-degraded" in self.headers

    def answering(self, model: str) -> str | None:
        return None if self.degraded else model


class Client:
    def __init__(
        self, base_url: str, api_key: str, context: ssl.SSLContext | None, at_once: int, answer_s: float
    ) -> None:
        url = URL(base_url)
        self._path = url.path.rstrip("/")
        self._answer_s = answer_s
        self._http = HTTPClient.from_url(
            url,
            headers={"Authorization": f"Bearer {api_key}", "Accept": "*/*"},
            concurrency=at_once,
            connection_timeout=CONNECT_S,
            network_timeout=answer_s,
            ssl_context_factory=(lambda **_: context) if context is not None else None,
        )

    def close(self) -> None:
        self._http.close()

    def post_json(self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> Reply:
        """POST JSON, streamed if the body asks for it; raise WrongAnswer or Unreachable."""
        sent = {"Content-Type": "application/json"} | (headers or {})
        return self.send("POST", path, json.dumps(body).encode(), sent, body if body.get("stream") else None)

    def send(
        self, method: str, path: str, body: bytes, headers: dict[str, str], streamed: dict[str, Any] | None = None
    ) -> Reply:
        with self._bounded():
            sent_s = time.perf_counter()
            with self._http.request(method, self._path + path, body=body, headers=headers) as response:
                reply = Reply(response.status_code, {name.lower(): str(value) for name, value in response.headers})
                if streamed is not None and reply.status == 200:
                    reply.stream = Stream(reply.answering(streamed["model"]), sent_s)
                    _read_lines(response, reply.stream)
                else:
                    reply.body = bytes(_read_whole(response))
            reply.took_s = time.perf_counter() - sent_s
        if reply.status != 200:
            reply.code = _code(reply.body)
        return reply

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        timeout = gevent.Timeout(self._answer_s)
        timeout.start()
        try:
            yield
        except gevent.Timeout as late:
            if late is not timeout:
                raise
            raise Unreachable(f"no whole answer within {self._answer_s:.0f} s") from None
        except (OSError, HTTPParseError) as error:
            raise Unreachable(f"the connection failed: {type(error).__name__}") from None
        finally:
            timeout.close()


def _read_lines(response: HTTPSocketPoolResponse, stream: Stream) -> None:
    size = 0
    while line := response.readline(b"\n"):
        size += len(line)
        if size > MOST_BYTES:
            raise WrongAnswer("an answer without end")
        stream.line(line, time.perf_counter())
    stream.end()


def _read_whole(response: HTTPSocketPoolResponse) -> bytearray:
    found = bytearray()
    while part := response.read(64 * 1024):
        found += part
        if len(found) > MOST_BYTES:
            raise WrongAnswer("an answer without end")
    return found


def _code(body: bytes) -> str:
    try:
        return error_code(json.loads(body))
    except ValueError:
        return "without JSON"
