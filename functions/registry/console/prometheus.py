"""Client of the fleet's Prometheus: ranges and alerts, with questions that are written in this package.

A browser names a window and never a query: whoever has the console open cannot ask Prometheus for what they like.
Answers are bounded in bytes and in time. What goes wrong is `PrometheusAway`, in words.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson

ANSWER_S = 5.0
ANSWER_MAX_BYTES = 8 * 1024 * 1024


class PrometheusAway(Exception):
    """It cannot be reached, or does not answer as Prometheus does."""


@dataclass(frozen=True, slots=True)
class PrometheusAddress:
    url: str
    ca_file: Path | None = None
    token_file: Path | None = None  # read for each question: tokens of clusters change


@dataclass(frozen=True, slots=True)
class Range:
    """Unix seconds; both ends are asked for."""

    start_s: float
    end_s: float
    step_s: float


class Prometheus:
    """Owned by one event loop."""

    def __init__(self, address: PrometheusAddress) -> None:
        self._address = address
        self._client = httpx.AsyncClient(
            base_url=address.url.rstrip("/"),
            verify=ssl.create_default_context(cafile=str(address.ca_file)) if address.ca_file else True,
            timeout=ANSWER_S,
            trust_env=False,
        )

    async def close(self) -> None:
        await self._client.aclose()

    async def range(self, query: str, over: Range) -> list[dict[str, Any]]:
        """Series with `metric` (labels) and `values` (pairs of time and text)."""
        params = {"query": query, "start": over.start_s, "end": over.end_s, "step": over.step_s}
        return _listed(await self._ask("/api/v1/query_range", params), "result")

    async def alerts(self) -> list[dict[str, Any]]:
        """Those that fire or are about to."""
        return _listed(await self._ask("/api/v1/alerts", {}), "alerts")

    async def _ask(self, path: str, params: dict[str, Any]) -> dict[str, Any]:
        try:
            async with self._client.stream("GET", path, params=params, headers=self._headers()) as answer:
                document = await _bounded(answer)
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise PrometheusAway(f"Prometheus does not answer: {error or type(error).__name__}") from error
        try:
            said = orjson.loads(document)
        except orjson.JSONDecodeError as error:
            raise PrometheusAway(f"Prometheus answers with {answer.status_code} and no JSON") from error
        if not isinstance(said, dict) or said.get("status") != "success" or not isinstance(said.get("data"), dict):
            words = said.get("error") if isinstance(said, dict) else None
            raise PrometheusAway(f"Prometheus answers with {answer.status_code}: {str(words)[:300]}")
        data: dict[str, Any] = said["data"]
        return data

    def _headers(self) -> dict[str, str]:
        file = self._address.token_file
        return {"authorization": f"Bearer {file.read_text().strip()}"} if file is not None else {}


async def _bounded(answer: httpx.Response) -> bytes:
    blocks, size_bytes = [], 0
    async for block in answer.aiter_bytes():
        size_bytes += len(block)
        if size_bytes > ANSWER_MAX_BYTES:
            raise PrometheusAway(f"Prometheus answers with more than {ANSWER_MAX_BYTES} bytes")
        blocks.append(block)
    return b"".join(blocks)


def _listed(data: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = data.get(name)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise PrometheusAway(f"Prometheus answers without a list of {name}")
    return found
