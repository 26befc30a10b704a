"""Health probes of processes. Each has a time limit, and every failure becomes a message."""

import asyncio
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from functions.controller.local.context import HOST
from functions.controller.local.spec import HttpProbe, PathProbe, Probe, TcpProbe
from functions.fleet import own_stalls

PROBE_TIMEOUT_S = 2.0
_REASON_MAX_CHARS = 300
_WHY = ("not_ready", "condemned", "reason", "detail")  # keys of our servers' JSON that can hold a reason


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    ok: bool
    answered: bool  # an answer is evidence, even a negative one; silence may be another's fault
    detail: str = ""


class ProcessProber:
    """Prober that opens a new connection for each probe. A connection pool would keep connections of probes that were
    cut short while they connected, and a hundred of these exhaust it. On a machine that was overloaded for a while,
    healthy processes were then killed one after the other (test_probes_that_are_cut_short_leave_nothing_behind)."""

    def __init__(self, timeout_s: float = PROBE_TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._trust: dict[Path | None, ssl.SSLContext] = {}

    async def probe(self, probe: Probe) -> ProbeOutcome:
        if isinstance(probe, PathProbe):
            there = probe.path.exists()
            return ProbeOutcome(there, True, "" if there else f"{probe.path.name} does not exist yet")
        try:
            async with own_stalls.timeout(self._timeout_s):
                return await (self._http(probe) if isinstance(probe, HttpProbe) else self._tcp(probe))
        except TimeoutError:
            return ProbeOutcome(False, False, f"no answer within {self._timeout_s:.0f} s")
        except (httpx.HTTPError, OSError) as error:
            return ProbeOutcome(False, False, str(error) or type(error).__name__)

    async def _http(self, probe: HttpProbe) -> ProbeOutcome:
        # trust_env is off: a proxy or SSL_CERT_FILE of the operator's shell does not apply to loopback
        trust = self._tls_context(probe.ca_file)
        async with httpx.AsyncClient(verify=trust, timeout=httpx.Timeout(None), trust_env=False) as client:
            response = await client.get(probe.url, headers={"connection": "close"})
        if response.status_code != 200:
            return ProbeOutcome(False, True, f"HTTP {response.status_code}: {answer_text(response.text)}")
        return ProbeOutcome(True, True)

    async def _tcp(self, probe: TcpProbe) -> ProbeOutcome:
        _, writer = await asyncio.open_connection(probe.host, probe.port)
        writer.close()
        return ProbeOutcome(True, True)

    def _tls_context(self, ca_file: Path | None) -> ssl.SSLContext:
        """Return the SSL context of an authority, created once: reading the authorities takes ten milliseconds."""
        trust = self._trust.get(ca_file)
        if trust is None:
            trust = (
                ssl.create_default_context(cafile=str(ca_file)) if ca_file else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            )
            self._trust[ca_file] = trust
        return trust


def answer_text(text: str) -> str:
    """Return an answer as one line for people: only the reason, if the answer is JSON that has one."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    if isinstance(content, dict):
        reasons = (content.get(name) for name in _WHY)
        text = next((reason for reason in reasons if isinstance(reason, str) and reason), text)
    return " ".join(text[:_REASON_MAX_CHARS].split())


# Snapshot epoch that the gateway uses, from its metrics port.


METRIC = b"shoal_snapshot_epoch "
TIMEOUT_S = 2.0
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.25  # rendering metrics costs the gateway milliseconds


class GatewayEpoch:
    """Reader of the gateway's snapshot epoch. Owned by one event loop."""

    def __init__(self, port: Callable[[], int]) -> None:
        self._port = port
        self._client = httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False)

    async def read(self) -> int | None:
        """Return the epoch that the gateway uses, or None if it does not answer or reports none."""
        try:
            answer = await self._client.get(f"http://{HOST}:{self._port()}/metrics")
            line = next(line for line in answer.content.splitlines() if line.startswith(METRIC))
            return int(float(line.removeprefix(METRIC)))
        except (httpx.HTTPError, StopIteration, ValueError):
            return None

    async def wait_for_epoch(self, epoch: int, deadline_s: float) -> bool:
        """Wait until the gateway uses this epoch or a later one. Return False at the deadline (loop time)."""
        pause_s = _FIRST_PAUSE_S
        while (await self.read() or 0) < epoch:
            if asyncio.get_running_loop().time() + pause_s > deadline_s:
                return False
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        return True

    async def close(self) -> None:
        await self._client.aclose()
