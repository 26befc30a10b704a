"""The node fetcher as a process: its listener, its parts, its signals and its report.

    1 listen, and serve chunks from the first moment
    2 resolve each name to a digest; fetch one after the other, with progress lines on stderr
    3 protect it from eviction on the node, lay out its compiled code, and link it at its folder: an engine that waits
      for the link finds both
    4 ready (`GET /readyz`): seed, then deregister at the tracker and end

SIGTERM or SIGINT ends it at any point. Verified chunks stay in the cache, and the next run continues from them.
"""

import asyncio
import contextlib
import logging
import signal
import ssl
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf
from pathlib import Path
from random import Random

import httpx
import msgspec
import uvloop
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from functions.api.ids import Digest
from functions.api.netloc import netloc
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.locations import WeightsName
from functions.artifacts.s3 import S3Settings, S3Store, load_credentials
from functions.artifacts.swarm.addresses import AddressRefused, check_address
from functions.artifacts.swarm.chunk_clients import TIMEOUT, Bandwidth, Origin
from functions.artifacts.swarm.download import Download, DownloadNode
from functions.artifacts.swarm.shelf import ChunkShelf
from functions.decisions.distribution.swarm import SwarmPolicy
from functions.fleet.role_credentials import CredentialsUnusable, RoleCredentials, read_for
from functions.fleet.tasks import Supervised
from functions.replica.chunk_routes import ChunkUploads, chunk_routes
from functions.replica.listeners import AgentStartFailed, PeerServer, bind
from functions.replica.node_fetch.compiled import CompiledFor, fetch_compiled
from functions.replica.node_fetch.wanted import Wanted, link, pointed_digest, published_digest
from functions.replica.peer_app import CredentialRequired
from functions.replica.settings import NodeFetchSettings

_SAY_EVERY_S = 5.0
_S3_READ_TIMEOUT_S = 10.0
_S3_ATTEMPTS = 1  # the swarm retries by itself, with backoff, and uses other sources meanwhile
_REGISTRY_TIMEOUT = httpx.Timeout(10.0, connect=5.0)
_PEER_CONNECTIONS = httpx.Limits(max_connections=64, max_keepalive_connections=48, keepalive_expiry=15.0)

_log = logging.getLogger(__name__)


class GaveUp(Exception):
    """The fetch took too long or was stopped; verified chunks stay for the next run."""


class Report(msgspec.Struct, frozen=True):
    """Result for one digest: a line of JSON on stdout."""

    digest: str
    path: str
    seconds: float
    chunks: int
    resumed_chunks: int
    from_peers_bytes: int
    from_store_bytes: int
    failures: dict[str, int]


def run(settings: NodeFetchSettings, wanted: list[Wanted]) -> None:
    """Fetch all artifacts, then seed them for the time that the settings say. Raise ArtifactError, GaveUp,
    AgentStartFailed or CredentialsInvalid."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(settings, wanted))


async def _run(settings: NodeFetchSettings, wanted: list[Wanted]) -> None:
    stopped = _stopped_by_signals()
    cache = ArtifactCache(settings.cache_dir)
    shelf = ChunkShelf(cache)
    uploads = ChunkUploads(Bandwidth(settings.up_bytes_per_s), settings.max_uploads)
    credentials = _credentials(settings)
    token, between_nodes = credentials.bearer("agent"), credentials.secret("chunks")
    store = _store(settings)
    down = Bandwidth(settings.down_bytes_per_s)
    policy = SwarmPolicy(max_requests=settings.max_requests, origin_requests=settings.origin_requests)
    async with AsyncExitStack() as stack:
        ready = asyncio.Event()
        port = await stack.enter_async_context(_serving(settings, _app(shelf, uploads, between_nodes, ready)))
        peers = await stack.enter_async_context(
            _client(between_nodes, timeout=TIMEOUT, limits=_PEER_CONNECTIONS, verify=_no_tls())
        )
        registry = None
        if settings.registry_url:
            registry = await stack.enter_async_context(
                _client(token, base_url=settings.registry_url, timeout=_REGISTRY_TIMEOUT, verify=_tls(settings))
            )
        node = DownloadNode(_address(settings.advertise_host, port), settings.zone)
        rng = Random()  # noqa: S311 - spreads requests, keeps no secrets
        until_s = time.monotonic() + settings.timeout_s
        downloads: list[Download] = []

        def download_of(digest: Digest) -> Download:
            made = Download(digest, node, cache, shelf, Origin(store, down), registry, peers, down, rng, policy)
            made.cache_max_bytes = settings.cache_max_bytes
            return made

        for each in wanted:
            digest = await _digest_of(each.what, registry, store)
            download = download_of(digest)
            path = await _fetch(download, until_s, stopped)
            stack.enter_context(cache.use(digest))
            if settings.compiled_dir is not None:
                to = CompiledFor(settings.compiled_dir, settings.compiled_for)
                await fetch_compiled(store, digest, to, lambda pack: _fetch(download_of(pack), inf, stopped))
            if each.folder is not None:
                await asyncio.to_thread(link, path, each.folder)
            if settings.shown_at is not None and not downloads:
                await asyncio.to_thread(link, path, settings.shown_at)
            downloads.append(download)
        ready.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(_stay(settings.seed_s, stopped))  # needed also without a tracker
            for download in downloads:
                group.create_task(download.seed(settings.seed_s, stopped))


async def _digest_of(what: Digest | WeightsName, registry: httpx.AsyncClient | None, store: S3Store) -> Digest:
    if not isinstance(what, WeightsName):
        return what
    digest = None if registry is None else await published_digest(registry, what)
    if digest is None:
        digest = await asyncio.to_thread(pointed_digest, store, what)
        _log.info("%s is %s, by the pointer in the store", what, digest)
    else:
        _log.info("%s is %s, as published by the registry", what, digest)
    return digest


async def _stay(seconds: float, stopped: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stopped.wait()


async def _fetch(download: Download, until_s: float, stopped: asyncio.Event) -> Path:
    began_s = time.monotonic()
    loop = asyncio.get_running_loop()
    fetching, ending = loop.create_task(download.run()), loop.create_task(stopped.wait())
    try:
        while not fetching.done():
            say_in_s = min(_SAY_EVERY_S, max(0.0, until_s - time.monotonic()) + 0.01)
            await asyncio.wait({fetching, ending}, timeout=say_in_s, return_when=asyncio.FIRST_COMPLETED)
            if stopped.is_set():
                raise GaveUp(
                    f"stopped by a signal; {download.progress.have} chunks of {download.digest} stay for the next run"
                )
            if time.monotonic() > until_s and not fetching.done():
                raise GaveUp(
                    f"{download.digest} was not fetched within SHOAL_NODE_FETCH_TIMEOUT_S; verified chunks stay"
                )
            _say(download, time.monotonic() - began_s)
    finally:
        fetching.cancel()
        ending.cancel()
        await asyncio.wait({fetching, ending})
    path = fetching.result()
    _report(download, path, time.monotonic() - began_s)
    return path


def _say(download: Download, seconds: float) -> None:
    progress = download.progress
    _log.info(
        "%s: %d of %d chunks after %.0f s; %d MB from %d nodes, %d MB from the store%s",
        download.digest[:19],
        progress.have,
        progress.chunks,
        seconds,
        progress.from_peers_bytes // 1_000_000,
        progress.nodes,
        progress.from_store_bytes // 1_000_000,
        f"; failures {dict(progress.failures)}" if progress.failures else "",
    )


def _report(download: Download, path: Path, seconds: float) -> None:
    progress = download.progress
    report = Report(
        download.digest,
        str(path),
        round(seconds, 3),
        progress.chunks,
        progress.resumed,
        progress.from_peers_bytes,
        progress.from_store_bytes,
        dict(progress.failures),
    )
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
    sys.stdout.flush()


def _stopped_by_signals() -> asyncio.Event:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    return stopped


def _app(shelf: ChunkShelf, uploads: ChunkUploads, token: str, ready: asyncio.Event) -> ASGIApp:
    app = FastAPI(title="shoal node fetch", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(chunk_routes(shelf, uploads))
    guarded = CredentialRequired(app, lambda path: (token,))

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        """Answer /readyz without a token, because a kubelet has none; guard all other paths."""
        if scope["type"] == "http" and scope["path"] == "/readyz":
            reply = JSONResponse({"ready": True}) if ready.is_set() else JSONResponse({"ready": False}, 503)
            await reply(scope, receive, send)
            return
        await guarded(scope, receive, send)

    return answer


@asynccontextmanager
async def _serving(settings: NodeFetchSettings, app: ASGIApp) -> AsyncIterator[int]:
    """Serve the app on the settings' host and port inside this context, and yield the port."""
    server = PeerServer(app, bind(settings.listen_host, settings.listen_port, "SHOAL_NODE_FETCH_LISTEN_PORT"))
    port = server.port
    tasks = Supervised()
    tasks.once("chunks for peers", server.run())
    try:
        yield port
    finally:
        server.stop()
        await tasks.close()


@asynccontextmanager
async def _client(
    token: str,
    *,
    timeout: httpx.Timeout,
    verify: ssl.SSLContext,
    base_url: str = "",
    limits: httpx.Limits | None = None,
) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client with the token, without proxies and redirects, so that the token stays with its target."""
    headers = {"authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(
        base_url=base_url,
        headers=headers,
        timeout=timeout,
        verify=verify,
        limits=limits or httpx.Limits(),
        trust_env=False,
    ) as client:
        yield client


def _tls(settings: NodeFetchSettings) -> ssl.SSLContext:
    if not settings.registry_url.startswith("https:"):
        return _no_tls()
    return ssl.create_default_context(cafile=settings.registry_ca_file)


def _no_tls() -> ssl.SSLContext:
    """Return a TLS context that trusts no authority, for a client that only uses http: it skips loading the machine's
    certificates."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _store(settings: NodeFetchSettings) -> S3Store:
    return S3Store(
        S3Settings(
            endpoint_url=settings.s3_endpoint_url,
            credentials=load_credentials(settings.s3_credentials_file),
            bucket=settings.s3_bucket,
            read_timeout_s=_S3_READ_TIMEOUT_S,
            max_attempts=_S3_ATTEMPTS,
        )
    )


def _credentials(settings: NodeFetchSettings) -> RoleCredentials:
    """Return the agents' credentials; raise AgentStartFailed if the file cannot be used. The secret between nodes opens
    only chunks: peer addresses are unverified."""
    try:
        return read_for("agent", settings.internal_token_file)
    except (OSError, UnicodeDecodeError, CredentialsUnusable) as error:
        raise AgentStartFailed(f"the token in {settings.internal_token_file} cannot be used: {error}") from error


def _address(host: str, port: int) -> str:
    try:
        return check_address(netloc(host, port), loopback_allowed=True)
    except AddressRefused as error:
        raise AgentStartFailed(f"SHOAL_NODE_FETCH_ADVERTISE_HOST: {error}") from error
