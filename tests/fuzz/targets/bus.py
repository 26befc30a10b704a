"""Bus messages folded into the state of gateway and registry: applied or dropped without exception; state is bounded.

The first byte selects the kind of message. Several messages in one input, separated by a line `--`, share their state.
"""

import contextlib
from collections.abc import Callable
from functools import cache

import msgspec

from functions.fleet import heartbeat, session_homes, session_pins, snapshot_notices
from functions.fleet.pool_board import PoolBoard
from functions.fleet.prefix_updates import PrefixUpdateInvalid, decode, decode_request
from functions.fleet.prefix_view import PrefixView
from functions.fleet.rollout_stats import EvidenceBook
from functions.gateway.feeds import _receive_homes, _receive_line, _receive_pins
from tests.fuzz.inputs import Input
from tests.gateway.rig import NOW_UNIX_S, Rig

DICTIONARY = (
    '{"replica_id":"r0","pool":"smollm2-135m","host":"127.0.0.1","port":9,"phase":"ready","sequence":2,'
    '"incarnation":1,"sent_unix_s":1.0}',
    '["r0",1,3,1.0,0,0,0.0,50.0,0.5,0.0,1]',
    '"adapters":["a"]',
    '"disk_bloom":"AAAA"',
    '{"gateway_id":"g","incarnation":1,"sequence":1,"sent_unix_s":1.0,"pools":[{"pool":"p","window_s":30.0}]}',
    '"needs":[{"what":"tokenizer","subject":"p"}]',
    '"ttft_ms":{"10":1}',
    '{"gateway_id":"g","incarnation":1,"sequence":1,"sent_unix_s":1.0,"stages":[]}',
    '{"gateway_id":"g","sent_unix_s":1.0,"pins":[{"rollout":"ro-00000000","ttl_s":9.0,"hashes":""}]}',
    '{"gateway_id":"h","sent_unix_s":1.0,"homes":[]}',
    '"candidate":{',
    '"schema_version":1',
    "1e308",
    "\n--\n",
)
_PER_WORLD = 100
_MAX_KEPT_BYTES = 64 * 1024 * 1024


class _Kept:
    """State that gateway and registry derive from the bus, used for some inputs."""

    def __init__(self) -> None:
        self.gateway = Rig().with_replicas("r0").gateway
        self.pools, self.rollouts, self.prefixes = PoolBoard(), EvidenceBook(), PrefixView()
        self.left = _PER_WORLD


@cache
def _holder() -> list[_Kept]:
    return [_Kept()]


def check(data: bytes) -> None:
    held = _holder()
    if held[0].left == 0:
        held[0] = _Kept()
    held[0].left -= 1
    kept = held[0]
    given = Input(data)
    take = _KINDS[given.byte() % len(_KINDS)]
    for message in given.rest().split(b"\n--\n"):
        take(kept, message)
    kept.gateway.sweep()
    kept.pools.sums(1000.0)
    kept.pools.needs(1000.0)
    kept.prefixes.sweep(1000.0)
    assert kept.rollouts.size_bytes <= _MAX_KEPT_BYTES


def _heartbeats(kept: _Kept, message: bytes) -> None:
    for line in heartbeat.lines(message):
        _receive_line(kept.gateway, line, None)


def _pools(kept: _Kept, message: bytes) -> None:
    kept.pools.receive_message(message, 1000.0)


def _rollouts(kept: _Kept, message: bytes) -> None:
    kept.rollouts.receive_message(message, NOW_UNIX_S)


def _pins(kept: _Kept, message: bytes) -> None:
    _receive_pins(kept.gateway.services, message)


def _homes(kept: _Kept, message: bytes) -> None:
    _receive_homes(kept.gateway.services, message)


def _prefixes(kept: _Kept, message: bytes) -> None:
    """Read the message as MessagePack, and as JSON converted to it, because mutations of text are more effective."""
    for packed in (message, _packed(message)):
        with contextlib.suppress(PrefixUpdateInvalid):
            kept.prefixes.fold(decode(packed), 1000.0)
        with contextlib.suppress(PrefixUpdateInvalid):
            decode_request(packed)


def _notices(_kept: _Kept, message: bytes) -> None:
    snapshot_notices.decode(message)
    for parse in (session_homes.decode, session_pins.decode):
        with contextlib.suppress(session_homes.HomesInvalid, session_pins.BatchInvalid):
            parse(message)


def _packed(message: bytes) -> bytes:
    try:
        return msgspec.msgpack.encode(msgspec.json.decode(message))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
        return b""


_KINDS: tuple[Callable[[_Kept, bytes], None], ...] = (
    _heartbeats,
    _pools,
    _rollouts,
    _pins,
    _homes,
    _prefixes,
    _notices,
)
