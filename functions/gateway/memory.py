"""Memory of a gateway if every limit of its settings is reached at the same time.

The kernel's send buffers (`listeners`: at most 256 KiB a connection) belong to the node and are not included.
"""

from functions.api.snapshot_document import SNAPSHOT_MAX_BYTES
from functions.gateway.batch.limits import BatchLimits
from functions.gateway.http.held_bytes import FREE_BYTES
from functions.gateway.intake.listing import KEPT_BYTES
from functions.gateway.limits import Limits
from functions.gateway.settings import GatewaySettings
from functions.gateway.usage.spool import MOST_BYTES as USAGE_BYTES
from functions.telemetry.memory import MIB, SNAPSHOT_FACTOR, Part
from functions.telemetry.trace_sink import WAITING_BYTES as TRACES_BYTES

_BASE_BYTES = 92 * MIB  # measured, with TLS and one tokenizer's libraries
_STORE_BYTES = 25 * MIB  # the object store's client
_STREAM_BYTES = 8_704  # measured (docs/measurements/README.md)
_ANSWER_COPIES = 4  # joined, renamed, with its head, and under TLS; one answer at a time
_BLOCK_BYTES = 110  # one remembered block of a prompt
_LEARNT_BYTES = 50 * 10**6 + 16 * MIB + 32 * 10**6  # chains, prompts to learn, tokenised pieces
_POOL_BYTES = 100 * 10**6 + 130 * MIB  # cached blocks of its replicas, and a tokenizer of 128,000 tokens
_FILE_BYTES = 20 * MIB  # a file during its upload to the store


def maximum_parts(settings: GatewaySettings, pools: int, snapshot_bytes: int = SNAPSHOT_MAX_BYTES) -> list[Part]:
    """Return the parts of the maximum memory, in bytes. `pools`: number of `generate` pools, each with a tokenizer."""
    limits, batch = Limits(), BatchLimits()
    parts = [
        Part("the process", _BASE_BYTES),
        Part("connections", settings.max_connections * (_STREAM_BYTES + FREE_BYTES)),
        Part("large bodies and answers", settings.uploads_bytes),
        Part("an answer as it is written", _ANSWER_COPIES * limits.answer_bytes),
        Part("prompts by where they went", settings.prefix_blocks * _BLOCK_BYTES),
        Part("listings", KEPT_BYTES),
        Part("snapshots, old and new", snapshot_bytes * (2 * SNAPSHOT_FACTOR + 1)),
        Part("bodies that wait for a pool at zero", limits.wake_waiting_bytes),
        Part("rows of usage", USAGE_BYTES),
    ]
    if settings.trace_dir is not None:
        parts.append(Part("traces on their way to a file", TRACES_BYTES))
    if settings.tokenizers_dir is not None or settings.tokenizers_cache_dir is not None:
        parts.append(Part("prompts to learn", _LEARNT_BYTES))
        parts.append(Part("tokenizers and caches", pools * _POOL_BYTES))
    if settings.s3_endpoint_url is not None:
        lines = 2 * batch.held_bytes + batch.running * batch.undurable_bytes
        parts.append(Part("files and batches", _STORE_BYTES + batch.uploads_at_once * _FILE_BYTES + lines))
    return parts
