"""A swarm in one process, without sockets: real downloads, routes and tracker, over transports that call them directly.

rig = SwarmRig(tmp_path)
digest = rig.publish(files=40)
node = rig.node(1)
path = await node.fetch(digest)

Silence timeouts are one hour, so that a slow machine triggers none of them. To let a timeout pass, a test runs
`rig.clock.skip_s += HOUR_S`.
"""

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import cast

import httpx
from fastapi import Depends, FastAPI

from functions.api.ids import Digest
from functions.artifacts import directories
from functions.artifacts import manifest as manifests
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.errors import StoreUnavailable
from functions.artifacts.locations import chunk_key, manifest_key
from functions.artifacts.manifest import FileEntry, Manifest
from functions.artifacts.s3 import S3Store
from functions.artifacts.swarm.chunk_clients import Bandwidth, Origin
from functions.artifacts.swarm.download import Download, DownloadNode
from functions.artifacts.swarm.shelf import ChunkShelf
from functions.decisions.distribution.swarm import SwarmPolicy
from functions.decisions.distribution.tracker import BoardPolicy
from functions.registry import errors
from functions.registry.conventions import require_token
from functions.registry.tracker import Tracker, tracker_routes
from functions.replica.chunk_routes import ChunkUploads, chunk_routes
from functions.replica.peer_app import CredentialRequired
from tests.artifacts.memory_store import MemoryStore

TOKEN = "swarm-tests"
HEADERS = {"authorization": f"Bearer {TOKEN}"}
HOUR_S = 3600.0
POLICY = SwarmPolicy(tracker_silent_s=HOUR_S, takeover_s=10 * HOUR_S)


class Clock:
    """Clock of the nodes; the tracker has its own."""

    skip_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.skip_s


class CountingStore(MemoryStore):
    """Store that counts the reads of each chunk; the first `broken` reads fail."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self.broken = 0

    def stream(self, key: str, max_bytes: int) -> Iterator[bytes]:
        if self.broken > 0:
            self.broken -= 1
            raise StoreUnavailable("the store answered 503")
        self.reads[key] += 1
        yield from super().stream(key, max_bytes)


class Away(httpx.AsyncBaseTransport):
    """Transport to a host that refuses connections."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)


@dataclass
class Switch(httpx.AsyncBaseTransport):
    """The network: a transport for each reachable host; other hosts refuse connections."""

    hosts: dict[str, httpx.AsyncBaseTransport] = field(default_factory=dict)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0.001)
        host = f"{request.url.host}:{request.url.port}"
        answer = await self.hosts.get(host, Away()).handle_async_request(request)
        if host not in self.hosts:
            raise httpx.ReadError("gone before it had answered", request=request)
        return answer


@dataclass
class SwarmNode:
    rig: "SwarmRig"
    number: int
    shelf: ChunkShelf
    uploads: ChunkUploads
    zone: str = ""

    @property
    def address(self) -> str:
        return f"10.0.0.{self.number}:8500"

    @property
    def cache(self) -> ArtifactCache:
        return self.shelf.cache

    def download(self, digest: Digest, *, tracker: bool = True) -> Download:
        store = cast(S3Store, self.rig.store)
        rate = Bandwidth()
        return Download(
            digest,
            DownloadNode(self.address, self.zone),
            self.cache,
            self.shelf,
            Origin(store, rate),
            self.rig.client("http://10.9.9.9:8444") if tracker else None,
            self.rig.client(),
            rate,
            Random(self.number),
            POLICY,
            self.rig.clock,
        )

    async def fetch(self, digest: Digest, timeout_s: float = 60.0) -> Path:
        async with asyncio.timeout(timeout_s):
            return await self.download(digest).run()


class SwarmRig:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = CountingStore()
        self.network = Switch()
        self.clock = Clock()
        self.tracker = Tracker(BoardPolicy(again_min_s=0.1, expire_after_s=HOUR_S, lease_s=HOUR_S), rng=Random(1))
        app = FastAPI()
        errors.install_error_handlers(app)
        app.include_router(tracker_routes(self.tracker, [Depends(require_token(TOKEN))]))
        self.network.hosts["10.9.9.9:8444"] = httpx.ASGITransport(app)

    def client(self, base_url: str = "") -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=base_url, transport=self.network, headers=HEADERS)

    def publish(self, files: int, seed: int = 1) -> Digest:
        """Publish an artifact of `files` chunks, one file each, since a chunk has at least 1 MiB."""
        rng = Random(seed)
        entries = []
        for number in range(files):
            content = rng.randbytes(1000 + number)
            sha256 = hashlib.sha256(content).hexdigest()
            self.store.put(chunk_key(sha256), content)
            entries.append(
                FileEntry(path=f"part-{number:03}", size_bytes=len(content), sha256=sha256, chunks=(sha256,))
            )
        document = manifests.encode(Manifest(files=tuple(entries)))
        digest = manifests.digest_of(document)
        self.store.put(manifest_key(manifests.hex_of(digest)), document)
        return digest

    def node(self, number: int, *, zone: str = "", shelf: type[ChunkShelf] = ChunkShelf) -> SwarmNode:
        """Add a node that serves the chunks it has from now on."""
        node = SwarmNode(self, number, shelf(ArtifactCache(self.folder / f"cache-{number}")), ChunkUploads(), zone)
        app = FastAPI()
        app.include_router(chunk_routes(node.shelf, node.uploads))
        self.network.hosts[node.address] = httpx.ASGITransport(CredentialRequired(app, lambda path: (TOKEN,)))
        return node

    def away(self, *addresses: str) -> None:
        for address in addresses:
            self.network.hosts[address] = Away()

    def tracker_away(self) -> None:
        self.away("10.9.9.9:8444")

    def chunk_reads(self) -> Counter[str]:
        return Counter({key: count for key, count in self.store.reads.items() if key.startswith("chunks/")})


def check_whole(path: Path, digest: Digest) -> None:
    directories.verify_directory(path, digest)
