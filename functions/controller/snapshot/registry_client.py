"""Client of the registry for publishers: what it holds now, and putting something newer.

Foreign exceptions end here. A registry that is away or overloaded is `RegistryUnavailable` (try again); one that
understood and said no is `RegistryRefused` (trying again changes nothing); `EpochTaken` names the epoch to go beyond.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec

from functions.api import snapshot_document as documents
from functions.api.snapshot import SNAPSHOT_MAX_BYTES, Snapshot, SnapshotInvalid
from functions.api.snapshot_index import Indexed, changes_between, empty
from functions.fleet.heartbeat import SILENCE_LIMIT_S, Heartbeat
from functions.fleet.pauses import PATIENT_SLICE_S, pause_between_slices
from functions.fleet.role_credentials import Bearer, current_secret
from functions.fleet.snapshots import EPOCH_FLOOR_HEADER, EPOCH_HEADER, FENCE_HEADER, HASH_HEADER, SNAPSHOT_PATH

FLEET_PATH = "/v1/fleet"
DELTA_MAX_ENTRIES = 20_000  # beyond, the whole is sent

_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
_FENCE_MAX_DIGITS = 15
_QUOTED_CHARS = 300

_log = logging.getLogger(__name__)


class RegistryUnavailable(Exception):
    """No answer now; try again later."""


class RegistryRefused(Exception):
    """The registry will not take it; the message says what to change."""


class EpochTaken(Exception):
    """The registry holds a later epoch than was thought; read again and go beyond."""


class RowMoved(Exception):
    """Somebody else has changed that since, or may not change it any more; read again and decide anew."""


class _BaseUnknown(Exception):
    """The registry holds something else than what the delta changes: send the whole."""


@dataclass(frozen=True, slots=True)
class RegistryState:
    epoch: int  # 0: it holds nothing
    snapshot_hash: str
    epoch_floor: int  # the next epoch must be above this and above `epoch`

    @property
    def next_epoch(self) -> int:
        return max(self.epoch, self.epoch_floor) + 1


@dataclass(frozen=True, slots=True)
class LastHeartbeat:
    """What a replica said last, and how long ago."""

    heartbeat: Heartbeat
    age_s: float

    @property
    def is_silent(self) -> bool:
        return self.age_s >= SILENCE_LIMIT_S


def registry_http(ca_file: Path | None) -> httpx.AsyncClient:
    """A client for a registry whose certificate this authority has signed; None: one of the system's. Blocks: reads it.

    No idle connections: a registry that drains would wait for their TLS to be closed by both sides.
    """
    verify = ssl.create_default_context(cafile=str(ca_file) if ca_file is not None else None)
    return httpx.AsyncClient(verify=verify, limits=httpx.Limits(max_keepalive_connections=0), trust_env=False)


class RegistryClient:
    """`fence` gives the number that says who leads, where several publishers may believe that they do.

    `outranked` hears of the highest number where ours is below it.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        registry_url: str,
        token: Bearer,
        fence: Callable[[], int] | None = None,
        outranked: Callable[[int], None] = lambda highest: None,
    ) -> None:
        self._client = client
        self._base = registry_url.rstrip("/")
        self._fence = fence
        self._outranked = outranked
        self._token = token

    async def state(self) -> RegistryState:
        response = await self.send("HEAD")
        try:
            return RegistryState(
                epoch=int(response.headers[EPOCH_HEADER]),
                snapshot_hash=response.headers.get(HASH_HEADER, ""),
                epoch_floor=int(response.headers[EPOCH_FLOOR_HEADER]),
            )
        except (KeyError, ValueError) as error:
            raise RegistryUnavailable(f"{self._base} does not answer as a registry does: {error!r}") from error

    async def current(self) -> Snapshot | None:
        """The snapshot that it holds; None where there is none, or none that can be read."""
        content = await self.content()
        return content.snapshot if content is not None else None

    async def content(self) -> Indexed | None:
        """What it holds; None where there is nothing, or nothing that can be read."""
        response = await self.send("GET", params={"after": 0})
        if response.status_code != 200 or len(response.content) > SNAPSHOT_MAX_BYTES:
            return None
        try:
            return await asyncio.to_thread(
                documents.read, documents.in_chunks(response.content), empty(), pause_between_slices(PATIENT_SLICE_S)
            )
        except SnapshotInvalid:
            return None

    async def put(self, content: Indexed, base: Indexed | None = None) -> None:
        """Publish it: as what changed since the base, where the registry holds that and it is less than the whole."""
        delta = await asyncio.to_thread(_delta, content, base) if base is not None else b""
        if delta:
            try:
                await self.send("PUT", content=delta)
                return
            except _BaseUnknown:
                _log.info("the registry does not hold the base any more; it gets the whole snapshot")
        document = await asyncio.to_thread(lambda: b"".join(documents.full_lines(content.snapshot)))
        if len(document) > SNAPSHOT_MAX_BYTES:
            raise RegistryRefused(f"the snapshot has {len(document)} bytes, over the limit of {SNAPSHOT_MAX_BYTES}")
        await self.send("PUT", content=document)

    async def fleet(self) -> tuple[LastHeartbeat, ...]:
        """What every replica said last."""
        response = await self.send("GET", FLEET_PATH)
        try:
            replicas: list[dict[str, Any]] = msgspec.json.decode(response.content)["replicas"]
            return tuple(LastHeartbeat(msgspec.convert(each, Heartbeat), float(each["age_s"])) for each in replicas)
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
            words = f"{self._base}{FLEET_PATH} does not answer as a registry does: {error}"
            raise RegistryUnavailable(words) from error

    async def send(
        self,
        method: str,
        path: str = SNAPSHOT_PATH,
        *,
        params: Mapping[str, float] | None = None,
        content: bytes | None = None,
        timeout: httpx.Timeout = _TIMEOUT,
    ) -> httpx.Response:
        """A good answer, or the error that says what to do; what has a body is fenced."""
        headers, url = (
            {"authorization": f"Bearer {current_secret(self._token)}", "accept-encoding": "identity"},
            self._base + path,
        )
        if content is not None:
            headers["content-type"] = "application/json"
            headers |= {FENCE_HEADER: str(self._fence())} if self._fence is not None else {}
        try:
            response = await self._client.request(
                method, url, params=params, content=content, headers=headers, timeout=timeout
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RegistryUnavailable(f"{url}: {str(error) or type(error).__name__}") from error
        if response.status_code < 300:
            return response
        explanation = f"{url} answered {response.status_code}: {response.text[:_QUOTED_CHARS]}"
        if response.status_code == 412:
            raise _BaseUnknown(explanation)
        if response.status_code == 409:
            if response.headers.get(FENCE_HEADER, "").isdecimal():
                self._outranked(int(response.headers[FENCE_HEADER][:_FENCE_MAX_DIGITS]))
            raise EpochTaken(explanation) if path == SNAPSHOT_PATH else RowMoved(explanation)
        if response.status_code == 429 or response.status_code >= 500:
            raise RegistryUnavailable(explanation)
        raise RegistryRefused(explanation)


def _delta(content: Indexed, base: Indexed) -> bytes:
    """What makes the content of the base; empty where the whole is no dearer."""
    changes = changes_between(base, content)
    if sum(map(len, changes.values())) > DELTA_MAX_ENTRIES:
        return b""
    return b"".join(documents.delta_lines(content.snapshot, base.content_hash, changes))
