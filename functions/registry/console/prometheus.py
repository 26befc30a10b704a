"""Client of the fleet's Prometheus: ranges and alerts, with the fixed queries of this package.

A browser chooses a window but never a query, so a console user cannot run arbitrary queries. Answers are limited in
bytes and time. All failures raise `PrometheusAway`, with a message.

Only alerts with the label `failure_mode` are shown (`functions/telemetry/alerting/rules.yaml`), because a cluster's
Prometheus also has other alerts. Labels and summaries contain names of pools and models, so their length is limited
and the page shows them as text.
"""

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import orjson

ANSWER_S = 5.0
ANSWER_MAX_BYTES = 8 * 1024 * 1024
ALERTS_SHOWN = 100
_WORDS_MAX_CHARS = 500
_LABELS_MAX = 20
_HIDDEN = frozenset({"alertname", "severity", "failure_mode"})
_ORDER = {"page": 0, "ticket": 1}


class PrometheusAway(Exception):
    """Prometheus cannot be reached, or its answer is invalid."""


@dataclass(frozen=True, slots=True)
class PrometheusAddress:
    url: str
    ca_file: Path | None = None
    token_file: Path | None = None  # read for each request, since clusters rotate tokens


@dataclass(frozen=True, slots=True)
class Range:
    """A time range in Unix seconds, including both ends."""

    start_s: float
    end_s: float
    step_s: float


class Prometheus:
    """HTTP client of one Prometheus. Owned by one event loop."""

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

    async def query_range(self, query: str, over: Range) -> list[dict[str, Any]]:
        """Return the series of a PromQL query, with `metric` (labels) and `values` (pairs of time and text). Raises
        PrometheusAway."""
        params = {"query": query, "start": over.start_s, "end": over.end_s, "step": over.step_s}
        return _listed(await self._query("/api/v1/query_range", params), "result")

    async def alerts(self) -> list[dict[str, Any]]:
        return _listed(await self._query("/api/v1/alerts", {}), "alerts")

    async def _query(self, path: str, params: dict[str, Any]) -> dict[str, Any]:
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


def shown_alerts(alerts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Describe our alerts for the console, at most ALERTS_SHOWN: name, state, start and runbook. Firing alerts come
    first, among them those that page, then the oldest."""
    ours = [described for each in alerts if (described := _described(each)) is not None]
    ours.sort(key=_urgency)
    firing = sum(each["state"] == "firing" for each in ours)
    return {"object": "list", "data": ours[:ALERTS_SHOWN], "total": len(ours), "firing": firing}


def _urgency(described: Mapping[str, Any]) -> tuple[bool, int, float]:
    return described["state"] != "firing", _ORDER.get(described["severity"], 2), described["since_unix_s"] or 0.0


def _described(alert: Mapping[str, Any]) -> dict[str, Any] | None:
    labels, notes = _texts(alert.get("labels")), _texts(alert.get("annotations"))
    if not labels.get("failure_mode"):
        return None
    others = [(name, value) for name, value in sorted(labels.items()) if name not in _HIDDEN]
    return {
        "name": labels.get("alertname", ""),
        "state": str(alert.get("state", ""))[:20],
        "severity": labels.get("severity", ""),
        "failure_mode": labels["failure_mode"],
        "summary": notes.get("summary", ""),
        "runbook_url": notes.get("runbook_url", ""),
        "labels": dict(others[:_LABELS_MAX]),
        "since_unix_s": _unix_s(alert.get("activeAt")),
        "value": str(alert.get("value", ""))[:40],
    }


def _texts(given: Any) -> dict[str, str]:
    if not isinstance(given, Mapping):
        return {}
    return {str(name)[:100]: str(value)[:_WORDS_MAX_CHARS] for name, value in given.items()}


def _unix_s(text: Any) -> float | None:
    """Return the Unix time of Prometheus's timestamps, such as `2026-01-02T03:04:05.678901234Z`, or None for other
    text."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None
