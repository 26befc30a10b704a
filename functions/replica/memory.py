"""Memory of an agent, and of the adapter cache, where every bound of ports, snapshot and transfers is reached."""

from functions.api.snapshot_document import SNAPSHOT_MAX_BYTES
from functions.artifacts.manifest import CHUNK_DEFAULT_BYTES, CHUNK_MAX_BYTES
from functions.replica.adapter_cache.read_through import AT_ONCE
from functions.replica.chunk_routes import ChunkUploads
from functions.replica.listeners import AGENT_BOUNDS, AGENT_CONNECTIONS, PEER_BOUNDS, PEER_CONNECTIONS
from functions.replica.settings import AdapterCacheSettings
from functions.telemetry.memory import MIB, SNAPSHOT_FACTOR, Part

_BASE_BYTES = 110 * MIB  # measured of one that is idle: 95, and the object store's client
_CONNECTION_BYTES = 16_000
_CHUNKS_ARRIVING = 8  # of adapters, whose chunks have the default size


def most_of_adapter_cache(settings: AdapterCacheSettings) -> list[Part]:
    """Objects are chunks of up to 64 MiB; as a rule they have 8."""
    return [
        Part("the process", _BASE_BYTES),
        Part("connections", PEER_CONNECTIONS * (_CONNECTION_BYTES + (PEER_BOUNDS.body_bytes or 0))),
        Part("answers", settings.max_answers * CHUNK_MAX_BYTES),
        Part("reads of the store", AT_ONCE * CHUNK_MAX_BYTES),
    ]


def most(snapshot_bytes: int = SNAPSHOT_MAX_BYTES) -> list[Part]:
    bodies = AGENT_CONNECTIONS * (AGENT_BOUNDS.body_bytes or 0) + PEER_CONNECTIONS * (PEER_BOUNDS.body_bytes or 0)
    return [
        Part("the process", _BASE_BYTES),
        Part("connections", (AGENT_CONNECTIONS + PEER_CONNECTIONS) * _CONNECTION_BYTES + bodies),
        Part("snapshots, old and new", snapshot_bytes * (2 * SNAPSHOT_FACTOR + 1)),
        Part("chunks", (ChunkUploads().max_uploads + _CHUNKS_ARRIVING) * CHUNK_DEFAULT_BYTES),
    ]
