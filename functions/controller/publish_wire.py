"""The registry as the controller sees it: what it holds now, and giving it something newer.

Foreign exceptions end here. A registry that is away or overloaded is `RegistryUnavailable` (try again); one that
understood and said no is `RegistryRefused` (trying again changes nothing); `EpochTaken` names the epoch to go beyond.
"""

from dataclasses import dataclass

import httpx

from functions.api import snapshot as snapshots
from functions.api.snapshot import SNAPSHOT_MAX_BYTES, Snapshot, SnapshotInvalid
from functions.fleet.snapshots import EPOCH_FLOOR_HEADER, EPOCH_HEADER, HASH_HEADER, SNAPSHOT_PATH

_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
_QUOTED_CHARS = 300


class RegistryUnavailable(Exception):
    """No answer now; try again later."""


class RegistryRefused(Exception):
    """The registry will not take it; the message says what to change."""


class EpochTaken(Exception):
    """The registry holds a later epoch than was thought; read again and go beyond."""


@dataclass(frozen=True, slots=True)
class RegistryState:
    epoch: int  # 0: it holds nothing
    snapshot_hash: str
    epoch_floor: int  # the next epoch must be above this and above `epoch`

    @property
    def next_epoch(self) -> int:
        return max(self.epoch, self.epoch_floor) + 1


class RegistryWire:
    def __init__(self, client: httpx.AsyncClient, registry_url: str, token: str) -> None:
        self._client = client
        self._url = registry_url.rstrip("/") + SNAPSHOT_PATH
        self._headers = {"authorization": f"Bearer {token}", "accept-encoding": "identity"}

    async def state(self) -> RegistryState:
        response = await self._send("HEAD")
        try:
            return RegistryState(
                epoch=int(response.headers[EPOCH_HEADER]),
                snapshot_hash=response.headers.get(HASH_HEADER, ""),
                epoch_floor=int(response.headers[EPOCH_FLOOR_HEADER]),
            )
        except (KeyError, ValueError) as error:
            raise RegistryUnavailable(f"{self._url} does not answer as a registry does: {error!r}") from error

    async def current(self) -> Snapshot | None:
        """The whole document; None where there is none, or none that can be read."""
        response = await self._send("GET", params={"after": 0})
        if response.status_code != 200 or len(response.content) > SNAPSHOT_MAX_BYTES:
            return None
        try:
            return snapshots.decode(response.content)
        except SnapshotInvalid:
            return None

    async def put(self, snapshot: Snapshot) -> None:
        document = snapshots.encode(snapshot)
        if len(document) > SNAPSHOT_MAX_BYTES:
            raise RegistryRefused(f"the snapshot has {len(document)} bytes, over the limit of {SNAPSHOT_MAX_BYTES}")
        await self._send("PUT", content=document)

    async def _send(
        self, method: str, *, params: dict[str, int] | None = None, content: bytes | None = None
    ) -> httpx.Response:
        headers = {**self._headers, "content-type": "application/json"} if content is not None else self._headers
        try:
            response = await self._client.request(
                method, self._url, params=params, content=content, headers=headers, timeout=_TIMEOUT
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RegistryUnavailable(f"{self._url}: {str(error) or type(error).__name__}") from error
        if response.status_code < 300:
            return response
        explanation = f"{self._url} answered {response.status_code}: {response.text[:_QUOTED_CHARS]}"
        if response.status_code == 409:
            raise EpochTaken(explanation)
        if response.status_code == 429 or response.status_code >= 500:
            raise RegistryUnavailable(explanation)
        raise RegistryRefused(explanation)
