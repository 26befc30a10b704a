"""Asking a process whether it is well. Every question has a time limit, and every failure becomes words."""

import asyncio
import json
import ssl
from dataclasses import dataclass
from pathlib import Path

import httpx

from functions.controller.local.spec import HttpProbe, Probe, TcpProbe

PROBE_TIMEOUT_S = 2.0
_REASON_MAX_CHARS = 300
_WHY = ("not_ready", "condemned", "reason", "detail")  # where our own servers' JSON says why


@dataclass(frozen=True, slots=True)
class Outcome:
    ok: bool
    answered: bool  # somebody spoke: a "no" is then evidence, silence may be another's fault
    detail: str = ""


class Prober:
    """Owns one HTTP client per certificate authority."""

    def __init__(self, timeout_s: float = PROBE_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._clients: dict[Path | None, httpx.AsyncClient] = {}

    async def probe(self, probe: Probe) -> Outcome:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await (self._http(probe) if isinstance(probe, HttpProbe) else self._tcp(probe))
        except TimeoutError:
            return Outcome(False, False, f"no answer within {self._timeout_s:.0f} s")
        except (httpx.HTTPError, OSError) as error:
            return Outcome(False, False, str(error) or type(error).__name__)

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()

    async def _http(self, probe: HttpProbe) -> Outcome:
        response = await self._client(probe.ca_file).get(probe.url, headers={"connection": "close"})
        if response.status_code != 200:
            return Outcome(False, True, f"HTTP {response.status_code}: {said(response.text)}")
        return Outcome(True, True)

    async def _tcp(self, probe: TcpProbe) -> Outcome:
        _, writer = await asyncio.open_connection(probe.host, probe.port)
        writer.close()
        return Outcome(True, True)

    def _client(self, ca_file: Path | None) -> httpx.AsyncClient:
        client = self._clients.get(ca_file)
        if client is None:
            verify = ssl.create_default_context(cafile=str(ca_file)) if ca_file is not None else False
            # trust_env off: a proxy or SSL_CERT_FILE of the operator's shell is not for loopback
            client = httpx.AsyncClient(verify=verify, timeout=self._timeout_s, trust_env=False)
            self._clients[ca_file] = client
        return client


def said(text: str) -> str:
    """What an answer says, in a line for a person: the reason alone where it is JSON that names one."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if isinstance(content, dict):
        reasons = (content.get(name) for name in _WHY)
        text = next((reason for reason in reasons if isinstance(reason, str) and reason), text)
    return " ".join(text[:_REASON_MAX_CHARS].split())
