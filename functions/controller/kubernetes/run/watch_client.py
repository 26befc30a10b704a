"""List and watch client of the API server: pages, and lines of a watch. The library's exceptions end here.

Two errors are distinguished: `Gone` (the requested version was compacted: list again) and `KindMissing` (the kind's
definition is not installed: wait for it). Everything else is `Retryable`. Errors come as statuses of the answer or,
in a watch that had begun well, as a line of type ERROR.

The kubernetes client's own informer is not used: docs/decisions/0022 compares them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlencode

import orjson
import urllib3
from kubernetes import client as k8s

from functions.controller.kubernetes.errors import Gone, KindMissing, Retryable

LINE_MAX_BYTES = 8 * 1024 * 1024  # an object in etcd has at most 1.5 MiB
PAGE_MAX_BYTES = 256 * 1024 * 1024
_CHUNK_BYTES = 64 * 1024
_CONNECT_TIMEOUT_S = 5.0

Cut = Callable[[], None]


class WatchClient:
    """Client for any thread. One `ApiClient` serves several threads: its pool is safe, nothing else is shared."""

    def __init__(self, api_client: k8s.ApiClient) -> None:
        self._api = api_client

    def page(self, path: str, query: dict[str, str], timeout_s: float) -> dict[str, Any]:
        with self._answer(path, query, timeout_s) as response:
            content = response.read(PAGE_MAX_BYTES + 1)
        if len(content) > PAGE_MAX_BYTES:
            raise Retryable(f"{path}: a page of more than {PAGE_MAX_BYTES} bytes")
        return _object(path, content)

    def events(
        self, path: str, query: dict[str, str], silence_s: float, opened: Callable[[Cut], None]
    ) -> Iterator[dict[str, Any]]:
        """Yield the events of a watch until the server ends it, or until `silence_s` pass without a byte.

        Silence is no error: without changes there are no events, and a connection that died silently is replaced all
        the same. `opened` receives a function that ends the watch from another thread, as a broken connection does.
        """
        with self._answer(path, {**query, "watch": "true"}, silence_s) as response:
            opened(response.shutdown)
            with suppress(urllib3.exceptions.ReadTimeoutError):
                for line in _lines(path, response):
                    event = _object(path, line)
                    if event.get("type") == "ERROR":
                        _raise_for(path, event.get("object", {}))
                    yield event

    @contextmanager
    def _answer(self, path: str, query: dict[str, str], read_timeout_s: float) -> Iterator[urllib3.HTTPResponse]:
        request = self._api.param_serialize(
            "GET",
            f"{path}?{urlencode(query)}",
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        try:
            response = self._api.call_api(*request, _request_timeout=(_CONNECT_TIMEOUT_S, read_timeout_s)).response
            try:
                if response.status != 200:
                    _raise_for(path, _status(response))
                yield response
            finally:
                response.close()
                response.release_conn()
        except (urllib3.exceptions.HTTPError, k8s.ApiException, OSError) as error:
            raise Retryable(f"{path}: {error}") from error


def _lines(path: str, response: urllib3.HTTPResponse) -> Iterator[bytes]:
    rest = b""
    for chunk in response.stream(_CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())
        if len(rest) > LINE_MAX_BYTES:
            raise Retryable(f"{path}: an event of more than {LINE_MAX_BYTES} bytes")


def _object(path: str, content: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise Retryable(f"{path}: the answer is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise Retryable(f"{path}: the answer is no object")
    return value


def _status(response: urllib3.HTTPResponse) -> dict[str, Any]:
    """Return the Status object of an error with the HTTP status as its code, or a substitute with the text if it is
    none."""
    content = response.read(LINE_MAX_BYTES)
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        value = {"message": content[:300].decode("utf-8", "replace")}
    return {**(value if isinstance(value, dict) else {}), "code": response.status}


def _raise_for(path: str, status: dict[str, Any]) -> None:
    code, message = status.get("code"), str(status.get("message", "no reason given"))
    if code == 410 or status.get("reason") in {"Expired", "Gone"}:
        raise Gone(f"{path}: {message}")
    if code == 404:
        raise KindMissing(f"{path}: {message}")
    raise Retryable(f"{path}: {code}: {message}")
