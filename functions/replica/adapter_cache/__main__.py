"""`python -m functions.replica.adapter_cache`: a region's adapter cache, configured by SHOAL_ADAPTER_CACHE_*."""

import asyncio
import logging
import signal
import sys

import uvloop
from pydantic import ValidationError

from functions.api import struct_types
from functions.artifacts.manifest import CHUNK_MAX_BYTES
from functions.artifacts.s3 import CredentialsInvalid, S3Settings, S3Store, load_credentials
from functions.fleet.role_credentials import CredentialsUnusable, read_for
from functions.replica.adapter_cache.app import make_app
from functions.replica.adapter_cache.objects import CachedObjects
from functions.replica.adapter_cache.read_through import AT_ONCE, ReadThrough
from functions.replica.listeners import PEER_BOUNDS, PEER_CONNECTIONS, AgentStartFailed, PeerServer, bind
from functions.replica.settings import AdapterCacheSettings
from functions.telemetry.memory import MIB, Part, limit_bytes, warn_if_over

_S3_READ_TIMEOUT_S = 10.0
_S3_ATTEMPTS = 2
_BASE_BYTES = 110 * MIB  # the same as an agent's
_CONNECTION_BYTES = 16_000

_log = logging.getLogger(__name__)


def run(settings: AdapterCacheSettings) -> None:
    """Serve the adapter cache until a signal. Raise AgentStartFailed, CredentialsInvalid or OSError if that is not
    possible."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(settings))


def most_memory(settings: AdapterCacheSettings) -> list[Part]:
    """Return the memory that the adapter cache needs by part, if every bound is reached at the same time. Chunks have
    up to 64 MiB, usually 8."""
    return [
        Part("the process", _BASE_BYTES),
        Part("connections", PEER_CONNECTIONS * (_CONNECTION_BYTES + (PEER_BOUNDS.body_bytes or 0))),
        Part("answers", settings.max_answers * CHUNK_MAX_BYTES),
        Part("reads of the store", AT_ONCE * CHUNK_MAX_BYTES),
    ]


async def _run(settings: AdapterCacheSettings) -> None:
    warn_if_over(most_memory(settings), limit_bytes())
    objects = CachedObjects(settings.cache_dir, settings.cache_max_bytes)
    await asyncio.to_thread(objects.open)
    cache = ReadThrough(objects, _store(settings))
    try:
        credentials = read_for("agent", settings.internal_token_file)
    except (UnicodeDecodeError, CredentialsUnusable) as error:
        raise AgentStartFailed(f"SHOAL_ADAPTER_CACHE_INTERNAL_TOKEN_FILE: {error}") from error
    listener = bind(settings.listen_host, settings.listen_port, "SHOAL_ADAPTER_CACHE_LISTEN_PORT")
    app = make_app(cache, lambda path: credentials.accepted("chunks"), settings.max_answers)
    server = PeerServer(app, listener)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, server.stop)
    _log.info("listens on port %d with %d objects, %d bytes", server.port, len(objects), objects.total_bytes)
    try:
        await server.run()
    finally:
        await cache.close()


def _store(settings: AdapterCacheSettings) -> S3Store:
    return S3Store(
        S3Settings(
            endpoint_url=settings.s3_endpoint_url,
            credentials=load_credentials(settings.s3_credentials_file),
            bucket=settings.s3_bucket,
            read_timeout_s=_S3_READ_TIMEOUT_S,
            max_attempts=_S3_ATTEMPTS,
        )
    )


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    struct_types.prepare()
    try:
        run(AdapterCacheSettings())
    except (AgentStartFailed, CredentialsInvalid, ValidationError, OSError) as error:
        print(f"adapter cache: {error}", file=sys.stderr)  # noqa: T201 - the process's last word
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
