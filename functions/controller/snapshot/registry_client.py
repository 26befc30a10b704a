"""Client of the registry for publishers: read its snapshot, and put a newer one.

httpx errors are translated here. `RegistryUnavailable`: no answer or overload, try again. `RegistryRefused`:
rejected, trying again changes nothing. `EpochConflict`: the message has the epoch to exceed.
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
DELTA_MAX_ENTRIES = 20_000  # a larger delta is sent as the whole snapshot

_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
_FENCE_MAX_DIGITS = 15
_QUOTED_CHARS = 300

_log = logging.getLogger(__name__)


class RegistryUnavailable(Exception):
    """No answer now; try again later."""


class RegistryRefused(Exception):
    """The registry rejects the request; the message says what to change."""


class EpochConflict(Exception):
    """The registry has a later epoch than expected; read its state again and exceed that."""


class RowMoved(Exception):
    """Another writer has changed the row, or its present state does not allow the change; read it again and decide
    anew."""


class _BaseUnknown(Exception):
    """The registry does not have the delta's base: send the whole snapshot."""


@dataclass(frozen=True, slots=True)
class RegistryState:
    epoch: int  # 0: no snapshot
    snapshot_hash: str
    epoch_floor: int  # the next epoch must be above this and above `epoch`

    @property
    def next_epoch(self) -> int:
        return max(self.epoch, self.epoch_floor) + 1


@dataclass(frozen=True, slots=True)
class LastHeartbeat:
    heartbeat: Heartbeat
    age_s: float

    @property
    def is_silent(self) -> bool:
        return self.age_s >= SILENCE_LIMIT_S


def registry_http(ca_file: Path | None) -> httpx.AsyncClient:
    """Return a client that trusts this authority (None: the system's authorities). Blocks: reads the file. Idle
    connections are not kept: a draining registry would wait until both sides have closed their TLS."""
    verify = ssl.create_default_context(cafile=str(ca_file) if ca_file is not None else None)
    return httpx.AsyncClient(verify=verify, limits=httpx.Limits(max_keepalive_connections=0), trust_env=False)


class RegistryClient:
    """HTTP client of one registry. `fence` returns the number of the present leadership, if several publishers may
    claim it. `outranked` is called with the highest number if ours is lower."""

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
        """Return the registry's snapshot; None if there is none, or it is malformed or too large. Raise like `send` if
        the registry does not answer."""
        content = await self.content()
        return content.snapshot if content is not None else None

    async def content(self) -> Indexed | None:
        """Return the registry's snapshot with its index; None if there is none, or it is malformed or too large. Raise
        like `send` if the registry does not answer."""
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
        """Publish the content: the changes since `base` if the registry has that base and they are few, else the whole.
        Raise RegistryRefused if that is over SNAPSHOT_MAX_BYTES, and like `send`."""
        delta = await asyncio.to_thread(_delta, content, base) if base is not None else b""
        if delta:
            try:
                await self.send("PUT", content=delta)
                return
            except _BaseUnknown:
                _log.info("the registry no longer has the base, so the whole snapshot is sent")
        document = await asyncio.to_thread(lambda: b"".join(documents.full_lines(content.snapshot)))
        if len(document) > SNAPSHOT_MAX_BYTES:
            raise RegistryRefused(f"the snapshot has {len(document)} bytes, over the limit of {SNAPSHOT_MAX_BYTES}")
        await self.send("PUT", content=document)

    async def fleet(self) -> tuple[LastHeartbeat, ...]:
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
        """Send a request and return its successful answer. Raise RegistryUnavailable (try later), RegistryRefused, or
        for a conflict EpochConflict or RowMoved. Requests with a body carry the fence; a fence in a conflict's answer
        is passed to `outranked`."""
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
            raise EpochConflict(explanation) if path == SNAPSHOT_PATH else RowMoved(explanation)
        if response.status_code == 429 or response.status_code >= 500:
            raise RegistryUnavailable(explanation)
        raise RegistryRefused(explanation)


def _delta(content: Indexed, base: Indexed) -> bytes:
    """Return the delta from the base to the content; empty if it has too many entries."""
    changes = changes_between(base, content)
    if sum(map(len, changes.values())) > DELTA_MAX_ENTRIES:
        return b""
    return b"".join(documents.delta_lines(content.snapshot, base.content_hash, changes))
