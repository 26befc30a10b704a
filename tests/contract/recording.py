"""Recorded answers of the real engine: recorded once for a version of vLLM, then replayed to the contract's tests.

    SHOAL_RECORD_CONTRACT=1 pytest -m "engine" -k vllm tests/contract     (with a real engine; writes recorded.json)

Each test of the contract therefore checks three engines: recorded vLLM in `make check`, the simulated engine in `make
test`, and vLLM itself, partly in `make test` and completely in `make soak`. A test that sends another request than it
recorded fails with a message. Answers that depend on folders, time or other requests are not recorded.
"""

import hashlib
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import httpx

FILE = Path(__file__).with_name("recorded.json")
_HEADERS = ("content-type", "transfer-encoding", "x-request-id", "allow")
_LONGEST = 1_000  # characters of a request; a longer body is replaced by its hash


def asked(request: httpx.Request) -> dict[str, str]:
    body = request.content.decode(errors="backslashreplace")
    if len(body) > _LONGEST:
        body = f"sha256:{hashlib.sha256(request.content).hexdigest()}"
    return {"request": f"{request.method} {request.url.raw_path.decode()}", "body": body}


class Recorder(httpx.AsyncBaseTransport):
    """A transport to the real engine that records its answers."""

    def __init__(self, kept: list[dict[str, Any]]) -> None:
        self._kept = kept
        self._inner = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        answer = await self._inner.handle_async_request(request)
        content = await answer.aread()
        headers = {name: answer.headers[name] for name in _HEADERS if name in answer.headers}
        told = {"status": answer.status_code, "headers": headers, "content": content.decode()}
        self._kept.append(asked(request) | told)
        return httpx.Response(answer.status_code, headers=headers, content=content)

    async def aclose(self) -> None:
        await self._inner.aclose()


class Player(httpx.AsyncBaseTransport):
    """A transport that returns the engine's recorded answer to the same request."""

    def __init__(self, kept: list[dict[str, Any]]) -> None:
        self._kept = list(kept)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        wanted = asked(request)
        for number, each in enumerate(self._kept):
            if {name: each[name] for name in wanted} == wanted:
                del self._kept[number]
                return httpx.Response(each["status"], headers=each["headers"], content=each["content"].encode())
        raise AssertionError(f"the recording has no request {wanted}: record it again (see {__name__})")


class Recordings:
    """The recordings of all tests, by test name without the engine's kind."""

    def __init__(self) -> None:
        self._new: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._kept: dict[str, list[dict[str, Any]]] = json.loads(FILE.read_text())["tests"] if FILE.exists() else {}

    def functions(self) -> set[str]:
        """Return the recorded tests, without their parameters."""
        return {test.partition("[")[0] for test in self._kept}

    def recorder(self, test: str) -> Recorder:
        self._new[test] = []
        return Recorder(self._new[test])

    def player(self, test: str) -> Player:
        assert test in self._kept, f"{test} was never recorded (see {__name__})"
        return Player(self._kept[test])

    def save(self, version: str) -> None:
        if self._new:
            content = {"engine": f"vLLM {version}", "tests": dict(sorted({**self._kept, **self._new}.items()))}
            FILE.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
