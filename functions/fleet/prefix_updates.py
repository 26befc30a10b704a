"""Updates about engines' KV caches, from agents to gateways, and the requests for them: messages and packing.

There are three kinds of updates about one replica's set of token block names
(`functions.decisions.prefix.block_names`):

    delta    changes since the previous delta. A generation begins with the empty set at sequence 0; each delta with
             changes has the next sequence. One without changes repeats the sequence to show that the agent is alive.
    state    the whole set as of a sequence, in consecutive parts of at most STATE_NAMES names.
    bloom    a filter of the whole set (`functions.decisions.prefix.block_bloom`), complete in itself.

Each update also has the blocks that are in host memory only (`host_...`). A block that moves from the accelerator to
host memory is in `removed` and in `host_added` of one delta. An older gateway ignores those fields.

Updates are sent only on request: a gateway sends `PrefixRequest` for a pool every ASK_INTERVAL_S. An agent without a
request for ASKED_FOR_S stops sending. Names are hashes: neither prompts nor salts cross the bus. Both kinds of
message cross a trust boundary; decoding is strict and bounded.
"""

from array import array
from collections.abc import Callable, Iterable
from typing import Annotated, Literal

import msgspec

from functions.decisions.prefix.block_bloom import MAX_BYTES as BLOOM_MAX_BYTES

ASK_INTERVAL_S = 5.0
ASKED_FOR_S = 3 * ASK_INTERVAL_S
SILENCE_LIMIT_S = 30.0  # without an update for this long, the replica's blocks are unknown
STATE_NAMES = 4096
DELTA_NAMES = 16_384  # changes in one delta; if there are more, the whole state is sent
UPDATE_MAX_BYTES = 8 * 4 * DELTA_NAMES + 4096
ASK_MAX_BYTES = 64 * 1024
MAX_WANTED = 256  # replicas whose state one request may name

Kind = Literal["events", "bloom"]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"\A[A-Za-z0-9._-]+\Z")]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
BlockTokens = Annotated[int, msgspec.Meta(ge=0, le=65536)]  # 0: no block was stored yet
Packed = Annotated[bytes, msgspec.Meta(max_length=8 * DELTA_NAMES)]


class Delta(msgspec.Struct, frozen=True, tag="delta", gc=False):
    replica_id: Name
    pool: Name
    generation: Number  # start of the generation in Unix milliseconds: a later one is greater
    sequence: Number
    block_tokens: BlockTokens
    added: Packed = b""
    removed: Packed = b""
    host_added: Packed = b""
    host_removed: Packed = b""


class State(msgspec.Struct, frozen=True, tag="state", gc=False):
    replica_id: Name
    pool: Name
    generation: Number
    sequence: Number  # the set is as of this sequence
    block_tokens: BlockTokens
    part: Annotated[int, msgspec.Meta(ge=0, le=4095)]
    parts: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    names: Annotated[bytes, msgspec.Meta(max_length=8 * STATE_NAMES)] = b""
    host_names: Annotated[bytes, msgspec.Meta(max_length=8 * STATE_NAMES)] = b""


class PrefixBloom(msgspec.Struct, frozen=True, tag="bloom", gc=False):
    replica_id: Name
    pool: Name
    block_tokens: BlockTokens
    names: Number  # number of names in the filter
    filter: Annotated[bytes, msgspec.Meta(max_length=BLOOM_MAX_BYTES)]
    anywhere: Annotated[bytes, msgspec.Meta(max_length=BLOOM_MAX_BYTES)] = b""
    """Filter of the blocks on the accelerator and in host memory together; empty if none are in host memory."""


PrefixUpdate = Delta | State | PrefixBloom


class PrefixRequest(msgspec.Struct, frozen=True):
    """A gateway's request for updates about a pool, and for the whole state of replicas that it has missed updates
    of."""

    pool: Name
    kind: Kind
    states_of: Annotated[tuple[Name, ...], msgspec.Meta(max_length=MAX_WANTED)] = ()
    everyone: bool = False  # True if the gateway has just started: the state of all replicas


class PrefixUpdateInvalid(Exception):
    """The message is not about prefixes; drop it and count it."""


_encode = msgspec.msgpack.Encoder().encode
_decode_update: Callable[[bytes], PrefixUpdate] = msgspec.msgpack.Decoder(PrefixUpdate).decode
_decode_ask = msgspec.msgpack.Decoder(PrefixRequest).decode


def pack(names: Iterable[int]) -> bytes:
    return array("Q", names).tobytes()


def unpack(content: bytes) -> "array[int]":
    names = array("Q")
    names.frombytes(content)  # `decode` has checked that these are whole names
    return names


def encode(update: PrefixUpdate | PrefixRequest) -> bytes:
    return _encode(update)


def decode(message: bytes) -> PrefixUpdate:
    """Decode an update of a replica's cached blocks; PrefixUpdateInvalid if it is none."""
    if len(message) > UPDATE_MAX_BYTES:
        raise PrefixUpdateInvalid(f"{len(message)} bytes is over the limit of {UPDATE_MAX_BYTES}")
    try:
        update = _decode_update(message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PrefixUpdateInvalid(str(error)) from error
    if any(len(content) % 8 for content in _packed_of(update)):
        raise PrefixUpdateInvalid("a list of names ends within a name")
    return update


def decode_request(message: bytes) -> PrefixRequest:
    """Decode a gateway's request for updates; PrefixUpdateInvalid if it is none."""
    if len(message) > ASK_MAX_BYTES:
        raise PrefixUpdateInvalid(f"{len(message)} bytes is over the limit of {ASK_MAX_BYTES}")
    try:
        return _decode_ask(message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PrefixUpdateInvalid(str(error)) from error


def _packed_of(update: PrefixUpdate) -> tuple[bytes, ...]:
    match update:
        case Delta():
            return update.added, update.removed, update.host_added, update.host_removed
        case State():
            return update.names, update.host_names
        case PrefixBloom():
            return update.filter, update.anywhere
