"""Client of another region's registry: its changes, its content, and the limits granted there.

Foreign exceptions are mapped here: RegionAway means that there is no usable answer now. RegionContent blocks, for the
ingest threads, and yields data for `functions.artifacts.fetch`, which verifies every byte.
"""

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
import msgspec

from functions.artifacts.errors import ArtifactCorrupt, ArtifactMissing, StoreUnavailable
from functions.artifacts.locations import CHUNKS_PREFIX, MANIFESTS_PREFIX
from functions.decisions.regions.facts import FactsPage
from functions.fleet.quota_regions import Used

WAIT_S = 25.0  # long poll; proxies cut connections at 30 or 60
_TIMEOUT = httpx.Timeout(10.0, connect=3.0)
_POLL = httpx.Timeout(WAIT_S + 10.0, connect=3.0)
_PAGE_MAX_BYTES = 64 * 1024 * 1024
_QUOTED_CHARS = 200
_BLOCK_BYTES = 256 * 1024
_KINDS = {CHUNKS_PREFIX: "chunks", MANIFESTS_PREFIX: "manifests"}

Document = TypeVar("Document")


class RegionAway(Exception):
    """The region gave no usable answer; try again later."""


@dataclass(frozen=True, slots=True)
class RegionAccess:
    """Token and CA for requests to registries of other regions."""

    token: str
    ca_file: Path | None

    def verify(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ca_file) if self.ca_file is not None else None)

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}", "accept-encoding": "identity"}


class RegionClient:
    def __init__(self, access: RegionAccess) -> None:
        self._client = httpx.AsyncClient(verify=access.verify(), headers=access.headers, trust_env=False)

    async def fetch_changes(self, url: str, after: int, wait_s: float) -> FactsPage:
        params = {"after": str(after), "wait_s": str(wait_s)}
        return await self._get(f"{url}/regions/v1/changes", params, FactsPage, _POLL)

    async def fetch_used(self, url: str, after: str) -> Used:
        return await self._get(f"{url}/regions/v1/used", {"after": after}, Used, _TIMEOUT)

    async def close(self) -> None:
        await self._client.aclose()

    async def _get(self, url: str, params: dict[str, str], type_: type[Document], timeout: httpx.Timeout) -> Document:
        try:
            async with self._client.stream("GET", url, params=params, timeout=timeout) as response:
                body = bytearray()
                async for block in response.aiter_raw():
                    body += block
                    if len(body) > _PAGE_MAX_BYTES:
                        raise RegionAway(f"{url} answered with more than {_PAGE_MAX_BYTES} bytes")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RegionAway(f"{url}: {str(error) or type(error).__name__}") from error
        if response.status_code != 200:
            words = bytes(body[:_QUOTED_CHARS]).decode(errors="replace")
            raise RegionAway(f"{url} answered {response.status_code}: {words}")
        try:
            return msgspec.json.decode(bytes(body), type=type_)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RegionAway(f"{url} does not answer as a registry does: {error}") from error


class RegionContent:
    """Manifests and chunks of another region, under their keys in a store."""

    def __init__(self, access: RegionAccess, url: str) -> None:
        self._client = httpx.Client(verify=access.verify(), headers=access.headers, timeout=_TIMEOUT, trust_env=False)
        self._url = url

    def read_small(self, key: str, max_bytes: int) -> bytes:
        return b"".join(self.stream(key, max_bytes))

    def stream(self, key: str, max_bytes: int) -> Iterator[bytes]:
        prefix = next(prefix for prefix in _KINDS if key.startswith(prefix))
        url = f"{self._url}/regions/v1/{_KINDS[prefix]}/{key.removeprefix(prefix)}"
        received = 0
        try:
            with self._client.stream("GET", url) as response:
                if response.status_code == 404:
                    raise ArtifactMissing(f"{url} does not exist")
                if response.status_code != 200:
                    raise StoreUnavailable(f"{url} answered {response.status_code}")
                for block in response.iter_raw(_BLOCK_BYTES):
                    received += len(block)
                    if received > max_bytes:
                        raise ArtifactCorrupt(f"{key} has more than the {max_bytes} bytes it should have")
                    yield block
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise StoreUnavailable(f"{url}: {str(error) or type(error).__name__}") from error

    def close(self) -> None:
        self._client.close()
