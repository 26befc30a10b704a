"""Memory of an agent where every bound of its ports, its snapshot and its transfers is reached at once."""

from functions.api.snapshot_document import SNAPSHOT_MAX_BYTES
from functions.artifacts.manifest import CHUNK_DEFAULT_BYTES
from functions.replica.chunk_routes import ChunkUploads
from functions.replica.listeners import AGENT_BOUNDS, AGENT_CONNECTIONS, PEER_BOUNDS, PEER_CONNECTIONS
from functions.telemetry.memory import MIB, SNAPSHOT_FACTOR, Part

_BASE_BYTES = 110 * MIB  # measured of one that is idle: 95, and the object store's client
_CONNECTION_BYTES = 16_000
_CHUNKS_ARRIVING = 8  # of adapters, whose chunks have the default size


def most(snapshot_bytes: int = SNAPSHOT_MAX_BYTES) -> list[Part]:
    bodies = AGENT_CONNECTIONS * (AGENT_BOUNDS.body_bytes or 0) + PEER_CONNECTIONS * (PEER_BOUNDS.body_bytes or 0)
    return [
        Part("the process", _BASE_BYTES),
        Part("connections", (AGENT_CONNECTIONS + PEER_CONNECTIONS) * _CONNECTION_BYTES + bodies),
        Part("snapshots, old and new", snapshot_bytes * (2 * SNAPSHOT_FACTOR + 1)),
        Part("chunks", (ChunkUploads().max_uploads + _CHUNKS_ARRIVING) * CHUNK_DEFAULT_BYTES),
    ]
