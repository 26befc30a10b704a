"""Client of the engine's API for the replica agent: health, load and adapters.

No httpx type leaves this module. Every call has a deadline for its whole answer, because a server that trickles is as
hung as a silent one. Every answer has a size limit, and every failure is one of `errors`. The caller owns `http`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import httpx

from functions.api.snapshot import Task
from functions.engines.errors import EngineGarbled, EngineHung, EngineRefused, EngineUnreachable
from functions.engines.metrics import MAX_PAGE_BYTES, EngineMetrics, parse_metrics
from functions.fleet import own_stalls

_MESSAGE_CHARS = 500


@dataclass(frozen=True, slots=True)
class _ProbeRequest:
    """Smallest request that a model of one task answers, and the field that every answer to it has."""

    path: str
    body: Mapping[str, Any]
    answered_with: str


_PROBES: Mapping[Task, _ProbeRequest] = {
    "generate": _ProbeRequest("/v1/completions", {"prompt": "ping", "max_tokens": 1, "temperature": 0}, "choices"),
    "embed": _ProbeRequest("/v1/embeddings", {"input": "ping"}, "data"),
    "classify": _ProbeRequest("/classify", {"input": "ping"}, "data"),
    "score": _ProbeRequest("/score", {"text_1": "ping", "text_2": "pong"}, "data"),
}


@dataclass(frozen=True, slots=True)
class EngineModel:
    """One entry of /v1/models: the base model, or an adapter loaded by name."""

    name: str
    root: str
    parent: str | None
    max_model_len_tokens: int | None

    @property
    def is_adapter(self) -> bool:
        return self.parent is not None


class EngineClient:
    def __init__(self, http: httpx.AsyncClient, base_url: str, *, timeout_s: float = 5.0, load_timeout_s: float = 60.0):
        self._http = http
        self._base_url = base_url.rstrip("/")
        self._timeout_s = timeout_s
        self._load_timeout_s = load_timeout_s
        """Longer than other calls: the engine reads and checks a large adapter before it answers."""

    async def health(self, timeout_s: float | None = None) -> None:
        """Return if the server says that it is alive, else raise EngineError. Only `probe` detects a stuck step
        loop."""
        await self._call("GET", "/health", timeout_s=timeout_s)

    async def metrics(self) -> EngineMetrics:
        return parse_metrics((await self.metrics_page()).decode("utf-8", "replace"))

    async def metrics_page(self) -> bytes:
        """Return the engine's metrics page unchanged, for Prometheus."""
        return await self._call("GET", "/metrics")

    async def version(self) -> str:
        version = _object(await self._call("GET", "/version")).get("version")
        if not isinstance(version, str):
            raise EngineGarbled("GET /version: an answer without a version")
        return version

    async def models(self) -> tuple[EngineModel, ...]:
        answer = _object(await self._call("GET", "/v1/models"))
        try:
            return tuple(_model(card) for card in answer["data"])
        except (KeyError, TypeError, AttributeError) as error:
            raise EngineGarbled(f"/v1/models: {error!r}") from error

    async def load_adapter(self, name: str, path: str) -> None:
        """Load the adapter at `path`. The engine refuses a name that is already loaded: a name means one set of
        weights."""
        body = {"lora_name": name, "lora_path": path}
        await self._call("POST", "/v1/load_lora_adapter", body, timeout_s=self._load_timeout_s)

    async def unload_adapter(self, name: str) -> None:
        """Make the engine forget the name. Running requests continue; the weights leave when their memory is needed."""
        await self._call("POST", "/v1/unload_lora_adapter", {"lora_name": name})

    async def probe(self, model: str, timeout_s: float, task: Task = "generate") -> None:
        """Request one token, or one result of another task; raise EngineGarbled if there is none. Only this proves that
        the step loop runs."""
        probe = _PROBES[task]
        answer = _object(await self._call("POST", probe.path, {"model": model, **probe.body}, timeout_s=timeout_s))
        if not answer.get(probe.answered_with):
            raise EngineGarbled(f"POST {probe.path}: an answer without {probe.answered_with}")

    async def complete(self, model: str, fields: Mapping[str, Any], timeout_s: float) -> None:
        """Request a short completion with these extra fields and ignore its text."""
        body = {"model": model, "prompt": "ping pong", "max_tokens": 2, "temperature": 0, **fields}
        await self._call("POST", "/v1/completions", body, timeout_s=timeout_s)

    async def sleep(self) -> None:
        """Put the engine to sleep at level 1: weights go to host memory, KV is dropped. It frees memory only with
        --enable-sleep-mode."""
        await self._call("POST", "/sleep?level=1", timeout_s=self._load_timeout_s)

    async def is_sleeping(self) -> bool:
        return _object(await self._call("GET", "/is_sleeping")).get("is_sleeping") is True

    async def wake_up(self) -> None:
        """Wake the engine, and return when its weights are back on the accelerator."""
        await self._call("POST", "/wake_up", timeout_s=self._load_timeout_s)

    async def tokenize(self, model: str, prompt: str) -> tuple[int, ...]:
        answer = _object(await self._call("POST", "/tokenize", {"model": model, "prompt": prompt}))
        tokens = answer.get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            raise EngineGarbled("POST /tokenize: an answer without tokens")
        return tuple(tokens)

    async def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> bytes:
        deadline_s = self._timeout_s if timeout_s is None else timeout_s
        what = f"{method} {path}"
        try:
            async with own_stalls.timeout(deadline_s):
                return await self._exchange(method, path, body)
        except (TimeoutError, httpx.TimeoutException) as error:
            raise EngineHung(what, timeout_s=deadline_s) from error
        except httpx.DecodingError as error:
            raise EngineGarbled(f"{what}: {error!r}") from error
        except httpx.HTTPError as error:
            raise EngineUnreachable(f"{what}: {error!r}") from error

    async def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        async with self._http.stream(method, self._base_url + path, json=body, timeout=None) as response:
            content = await _read_bounded(response)
        if response.status_code != HTTPStatus.OK:
            raise EngineRefused(response.status_code, _message(content))
        return content


async def _read_bounded(response: httpx.Response) -> bytes:
    content = bytearray()
    async for part in response.aiter_bytes():
        content += part
        if len(content) > MAX_PAGE_BYTES:
            raise EngineGarbled(f"an answer of more than {MAX_PAGE_BYTES} bytes")
    return bytes(content)


def _object(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError as error:
        raise EngineGarbled(f"not JSON: {content[:80]!r}") from error
    if not isinstance(value, dict):
        raise EngineGarbled(f"not a JSON object: {content[:80]!r}")
    return value


def _model(card: Mapping[str, Any]) -> EngineModel:
    return EngineModel(str(card["id"]), str(card["root"]), card.get("parent"), card.get("max_model_len"))


def _message(content: bytes) -> str:
    """Return vLLM's error message, or the body if it has none; of either, the first _MESSAGE_CHARS."""
    try:
        error = json.loads(content)["error"]
        return str(error["message"])[:_MESSAGE_CHARS]
    except (ValueError, KeyError, TypeError):
        return content[:_MESSAGE_CHARS].decode("utf-8", "replace")
