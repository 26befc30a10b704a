"""Updates about engines' KV caches, from agents to gateways, and the requests for them: messages and packing.

Three kinds of updates, all about one replica's set of token block names (`functions.decisions.prefix.block_names`):

    delta    what came and went since the delta before. A generation begins with the empty set at sequence 0; each delta
             that changes something has the next sequence. One without changes repeats the sequence: "still here".
    state    the whole set as of a sequence, in parts of at most STATE_NAMES names, one after the other.
    bloom    a filter of the whole set (`functions.decisions.prefix.block_bloom`), complete in itself.

Beside what is on the accelerator, each tells what the engine has in host memory alone (`host_...`): a block that leaves
the accelerator and is kept is in `removed` and in `host_added` of one delta. An older gateway does not read those.

Nothing is sent without a request: a gateway names what it wants of a pool (`PrefixRequest`) every ASK_INTERVAL_S, and
an agent that got none for ASKED_FOR_S falls silent. Names are hashes: neither prompts nor salts cross the bus.
Both cross a trust border; decoding is strict and bounded.
"""

from array import array
from collections.abc import Callable, Iterable
from typing import Annotated, Literal

import msgspec

from functions.decisions.prefix.block_bloom import MAX_BYTES as BLOOM_MAX_BYTES

ASK_INTERVAL_S = 5.0
ASKED_FOR_S = 3 * ASK_INTERVAL_S
SILENCE_LIMIT_S = 30.0  # this long without an update, and nothing is known of the replica
STATE_NAMES = 4096
DELTA_NAMES = 16_384  # what comes and goes at once; more, and the whole state is told
UPDATE_MAX_BYTES = 8 * 4 * DELTA_NAMES + 4096
ASK_MAX_BYTES = 64 * 1024
MAX_WANTED = 256  # replicas whose state one ask wants

Kind = Literal["events", "bloom"]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"\A[A-Za-z0-9._-]+\Z")]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
BlockTokens = Annotated[int, msgspec.Meta(ge=0, le=65536)]  # 0: no block was stored yet
Packed = Annotated[bytes, msgspec.Meta(max_length=8 * DELTA_NAMES)]


class Delta(msgspec.Struct, frozen=True, tag="delta", gc=False):
    replica_id: Name
    pool: Name
    generation: Number  # unix milliseconds of its begin: a later one is greater
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
    sequence: Number  # as of
    block_tokens: BlockTokens
    part: Annotated[int, msgspec.Meta(ge=0, le=4095)]
    parts: Annotated[int, msgspec.Meta(ge=1, le=4096)]
    names: Annotated[bytes, msgspec.Meta(max_length=8 * STATE_NAMES)] = b""
    host_names: Annotated[bytes, msgspec.Meta(max_length=8 * STATE_NAMES)] = b""


class Bloom(msgspec.Struct, frozen=True, tag="bloom", gc=False):
    replica_id: Name
    pool: Name
    block_tokens: BlockTokens
    names: Number  # how many it was made of
    filter: Annotated[bytes, msgspec.Meta(max_length=BLOOM_MAX_BYTES)]
    anywhere: Annotated[bytes, msgspec.Meta(max_length=BLOOM_MAX_BYTES)] = b""
    """Of the accelerator's and of host memory's together; empty where nothing is in host memory."""


PrefixUpdate = Delta | State | Bloom


class PrefixRequest(msgspec.Struct, frozen=True):
    """A gateway wants to know this of a pool's replicas, and the whole state of those that it has lost count of."""

    pool: Name
    kind: Kind
    states_of: Annotated[tuple[Name, ...], msgspec.Meta(max_length=MAX_WANTED)] = ()
    everyone: bool = False  # the asker has just begun: the state of all


class PrefixUpdateInvalid(Exception):
    """Not a message about prefixes; drop it and count it."""


_encode = msgspec.msgpack.Encoder().encode
_decode_update: Callable[[bytes], PrefixUpdate] = msgspec.msgpack.Decoder(PrefixUpdate).decode
_decode_ask = msgspec.msgpack.Decoder(PrefixRequest).decode


def pack(names: Iterable[int]) -> bytes:
    return array("Q", names).tobytes()


def unpack(content: bytes) -> "array[int]":
    names = array("Q")
    names.frombytes(content)  # of a whole number of names: `decode` has seen to it
    return names


def encode(update: PrefixUpdate | PrefixRequest) -> bytes:
    return _encode(update)


def decode(message: bytes) -> PrefixUpdate:
    """Raises PrefixUpdateInvalid."""
    if len(message) > UPDATE_MAX_BYTES:
        raise PrefixUpdateInvalid(f"{len(message)} bytes is over the limit of {UPDATE_MAX_BYTES}")
    try:
        update = _decode_update(message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PrefixUpdateInvalid(str(error)) from error
    if any(len(content) % 8 for content in _packed_of(update)):
        raise PrefixUpdateInvalid("half a name")
    return update


def decode_ask(message: bytes) -> PrefixRequest:
    """Raises PrefixUpdateInvalid."""
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
        case Bloom():
            return update.filter, update.anywhere
