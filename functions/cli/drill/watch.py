"""Polls of gateway, registry, agents, controller and Prometheus during a drill.

A metrics page that does not answer is an observation, not an error. If Prometheus does not answer, alerts are not seen.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from functions.cli.context import CliContext
from functions.cli.drill.declared import Effect, Mend, Page
from functions.cli.drill.timeline import AlertChange, AlertState, FleetObservation

PAGE_S = 3.0
LOOK_EVERY_S = 0.5
PAGE_MAX_BYTES = 16 * 1024 * 1024

_FOLDS: Mapping[str, Callable[[list[float]], float]] = MappingProxyType({"sum": sum, "max": max, "min": min})
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): float(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value_of(samples: Samples, effect: Effect) -> float | None:
    """Return the folded value of all series with the effect's name and labels, or None if there is none."""
    wanted = frozenset(effect.labels.items())
    found = [value for (name, labels), value in samples.items() if name == effect.metric and wanted <= labels]
    if not found:
        return None
    return _FOLDS[effect.fold](found)


@dataclass(slots=True)
class Pages:
    context: CliContext
    token: str
    agents: tuple[int, ...]  # ports
    _client: httpx.AsyncClient = field(init=False)

    def __post_init__(self) -> None:
        verify = httpx.create_ssl_context(verify=str(self.context.layout.ca_file), trust_env=False)
        self._client = httpx.AsyncClient(verify=verify, timeout=PAGE_S, trust_env=False)

    async def close(self) -> None:
        await self._client.aclose()

    async def samples(self, page: Page) -> Samples | None:
        ports = self.context.ports
        match page:
            case "gateway":
                return await self._page(f"http://127.0.0.1:{ports.gateway_metrics}/metrics")
            case "registry":
                return await self._page(f"{self.context.registry_url}/metrics", self.token)
            case "controller":
                path = str(self.context.layout.control_socket)
                answers = await asyncio.to_thread(_listens, path)
                return {("answers", frozenset()): float(answers)}
            case "agents":
                found: Samples = {}
                for port in self.agents:
                    own = await self._page(f"http://127.0.0.1:{port}/metrics") or {}
                    found |= {(name, labels | {("agent", str(port))}): value for (name, labels), value in own.items()}
                return found or None

    async def _page(self, url: str, token: str = "") -> Samples | None:
        try:
            answer = await self._client.get(url, headers={"authorization": f"Bearer {token}"} if token else {})
            answer.raise_for_status()
            return await asyncio.to_thread(parsed, answer.text[:PAGE_MAX_BYTES])
        except (httpx.HTTPError, ValueError):
            return None


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PAGE_S)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


@dataclass(slots=True)
class FleetObserver:
    """Checks whether the fleet is as it was at the baseline, and whether the effect shows."""

    pages: Pages
    effect: Effect
    mend: Mend | None = None
    ready: float = 0.0
    zero: float = 0.0  # the counter's value at the baseline
    mends_before: float = 0.0

    async def record_baseline(self) -> None:
        gateway = await self.pages.samples("gateway") or {}
        self.ready = _ready(gateway)
        own = await self.pages.samples(self.effect.page)
        self.zero = (value_of(own, self.effect) or 0.0) if own is not None and self.effect.grows else 0.0
        if self.mend is not None:
            self.mends_before = value_of(await self.pages.samples(self.mend.done.page) or {}, self.mend.done) or 0.0

    async def observe(self, at_s: float) -> FleetObservation:
        gateway = await self.pages.samples("gateway")
        own = gateway if self.effect.page == "gateway" else await self.pages.samples(self.effect.page)
        value = value_of(own, self.effect) if own is not None else None
        if value is not None and self.effect.grows:
            value = max(0.0, value - self.zero)
        shows = self.effect.is_there(value)
        missing = await self._missing(gateway)
        if shows and not self.effect.grows and not missing:
            missing = self.effect.words
        is_mended, is_held = await self._mended()
        return FleetObservation(
            at_s=at_s, is_well=not missing, shows_effect=shows, effect=value, missing=missing,
            is_mended=is_mended and not missing, is_held=is_held,
        )  # fmt: skip

    async def _mended(self) -> tuple[bool, bool]:
        """Return (True if the platform's repair has begun and ended, True if it is held back); both False if the drill
        has none or its page cannot be read."""
        if self.mend is None:
            return False, False
        samples = await self.pages.samples(self.mend.done.page)
        if samples is None:
            return False, False
        begun = (value_of(samples, self.mend.done) or 0.0) > self.mends_before
        is_under_way = self.mend.under_way.is_there(value_of(samples, self.mend.under_way))
        return begun and not is_under_way, self.mend.held.is_there(value_of(samples, self.mend.held))

    async def _missing(self, gateway: Samples | None) -> str:
        """Return what the fleet lacks compared with the baseline; empty if nothing."""
        if gateway is None:
            return "the gateway's metrics"
        if _ready(gateway) < self.ready:
            return f"{self.ready - _ready(gateway):.0f} of {self.ready:.0f} replicas"
        if gateway.get(("shoal_bus_up", frozenset()), 0.0) < 1.0:
            return "the bus"
        control = await self.pages.samples("controller") or {}
        return "" if control.get(("answers", frozenset())) else "the controller"


def _ready(gateway: Samples) -> float:
    return sum(
        value
        for (name, labels), value in gateway.items()
        if name == "shoal_pool_replicas" and ("state", "ready") in labels
    )


@dataclass(slots=True)
class Alerts:
    """Alert states and series of the fleet's Prometheus."""

    url: str
    states: dict[str, AlertState] = field(default_factory=dict)
    changes: list[AlertChange] = field(default_factory=list)
    _client: httpx.AsyncClient = field(default_factory=lambda: httpx.AsyncClient(timeout=PAGE_S, trust_env=False))

    async def close(self) -> None:
        await self._client.aclose()

    async def windows_are(self, alert: str, held_s: float) -> bool:
        """Return True if Prometheus evaluates the alert with that `for` duration; False if it does not answer."""
        try:
            answer = await self._client.get(f"{self.url}/api/v1/rules", params={"type": "alert"})
            groups = answer.raise_for_status().json()["data"]["groups"]
        except (httpx.HTTPError, ValueError, KeyError):
            return False
        found = [rule for group in groups for rule in group["rules"] if rule["name"] == alert]
        return bool(found) and all(abs(rule["duration"] - held_s) < 0.5 for rule in found)

    async def history(self, began_unix_s: float, ended_s: float) -> list[AlertChange]:
        """Return all state changes from Prometheus, which is more exact than polls; the polled ones if it is silent."""
        found = await self.range("ALERTS", began_unix_s, ended_s)
        return changes_of(found, ended_s) if found else self.changes

    async def range(self, query: str, began_unix_s: float, ended_s: float) -> list[dict[str, Any]]:
        """Return series with one value per second, each at its second since `began_unix_s`; empty if Prometheus does
        not answer."""
        asked = {"query": query, "start": f"{began_unix_s:.0f}", "end": f"{began_unix_s + ended_s:.0f}", "step": "1"}
        try:
            answer = await self._client.get(f"{self.url}/api/v1/query_range", params=asked)
            series: list[dict[str, Any]] = answer.raise_for_status().json()["data"]["result"]
        except (httpx.HTTPError, ValueError, KeyError):
            return []
        zero_s = float(asked["start"])
        return [
            each | {"values": [(float(at) - zero_s, float(value)) for at, value in each["values"]]} for each in series
        ]

    async def refresh(self, at_s: float) -> None:
        try:
            answer = await self._client.get(f"{self.url}/api/v1/alerts")
            active = answer.raise_for_status().json()["data"]["alerts"]
        except (httpx.HTTPError, ValueError, KeyError):
            return
        now: dict[str, AlertState] = {}
        for alert in active:
            name, state = alert["labels"]["alertname"], alert["state"]
            if now.get(name) != "firing":
                now[name] = "firing" if state == "firing" else "pending"
        for name in sorted(self.states.keys() | now.keys()):
            state = now.get(name, "inactive")
            if state != self.states.get(name, "inactive"):
                self.changes.append(AlertChange(at_s, name, state))
        self.states = now


def changes_of(series: list[dict[str, Any]], ended_s: float) -> list[AlertChange]:
    """Return the changes in the series `ALERTS`. An alert without a sample at a second is inactive."""
    states: dict[str, dict[int, AlertState]] = {}
    for each in series:
        name, state = each["metric"]["alertname"], each["metric"]["alertstate"]
        of_alert = states.setdefault(name, {})
        for at_s, _ in each["values"]:
            if of_alert.get(round(at_s)) != "firing":
                of_alert[round(at_s)] = "firing" if state == "firing" else "pending"
    changes = []
    for name, by_second in sorted(states.items()):
        former: AlertState = "inactive"
        for second in range(round(ended_s) + 1):
            state = by_second.get(second, "inactive")
            if state != former:
                changes.append(AlertChange(float(second), name, state))
            former = state
    return sorted(changes, key=lambda change: change.at_s)
