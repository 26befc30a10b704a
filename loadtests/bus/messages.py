"""Messages that replicas and gateways of a large fleet publish, made by the product's own encoders."""

import hashlib
import os

from functions.api.ids import Digest, PoolName, ReplicaId, engine_name
from functions.api.ids import ModelId as Model
from functions.decisions.distribution import bloom
from functions.fleet import prefix_updates, session_homes
from functions.fleet.heartbeat import Heartbeat
from functions.fleet.prefix_updates import Delta, PrefixRequest
from functions.fleet.quota_leases import Group, LeaseRequest, RateRequest
from functions.fleet.session_homes import HomeBatch

ADAPTERS = 16  # per engine
ON_DISK = 500  # digests per node
POOLS = 10
LIMITS = 3  # per account: requests, input tokens and output tokens a minute
_INCARNATION = 1_800_000_000_000
_LIBRARY = 20_000


def pool_of(number: int) -> PoolName:
    return PoolName(f"base-{number % POOLS:02d}-instruct")


def replica_of(number: int) -> ReplicaId:
    return ReplicaId(f"{pool_of(number)}-predictor-00001-deployment-7c9d8f6b5-{number:05d}")


def _digest(number: int) -> Digest:
    return Digest("sha256:" + hashlib.sha256(b"%d" % number).hexdigest())


_ON_DISK = bloom.build([_digest(number) for number in range(ON_DISK)])


def heartbeat(number: int, sequence: int, at_s: float = 0.0) -> Heartbeat:
    """Return a heartbeat of replica `number`, sent `at_s` after the first one. Its load varies, its adapters do not."""
    assert _ON_DISK is not None
    adapters = tuple(
        engine_name(Model(f"tenant-{at % 997:04d}/assistant-{at:05d}"), _digest(at))
        for at in ((number * 7 + place) % _LIBRARY for place in range(ADAPTERS))
    )
    return Heartbeat(
        replica_id=replica_of(number),
        pool=pool_of(number),
        host=f"10.{number // 65536 % 256}.{number // 256 % 256}.{number % 256}",
        port=8080,
        phase="ready",
        sequence=sequence,
        incarnation=_INCARNATION,
        sent_unix_s=1_800_000_000.0 + at_s,
        running=sequence % 64,
        waiting=sequence % 5,
        kv_usage_ratio=(sequence % 97) / 97,
        kv_blocks_total=27_000,
        service_ms=41.25 + sequence % 7,
        prefill_ms_per_token=0.0625,
        decode_tokens_per_s=1811.5 + sequence % 11,
        adapters=adapters,
        snapshot_epoch=4711,
        engine_version="0.11.0",
        peer_port=8500,
        zone="eu-west-1a",
        adapter_room=2,
        disk_bloom=_ON_DISK.encode(),
        adapters_without_room=(),
    )


def lease_round(accounts: int, gateway: int = 0) -> list[Group]:
    """Return the lease requests of one round of a gateway with `accounts` accounts in use."""
    rates = tuple(RateRequest(index, 60_000, 60_000_000_000, 60, 1_000_000, 1_000_000) for index in range(LIMITS))
    return [
        Group(False, (LeaseRequest(f"t:tenant-{gateway:02d}-{number:05d}", 64, 2, 1, rates),))
        for number in range(accounts)
    ]


def home_batch(conversations: int) -> bytes:
    """Return a batch in which each conversation has another replica, as exceptions in a large fleet have."""
    homes = tuple(
        session_homes.sessions_at(pool_of(number), replica_of(number), 600.0, [os.urandom(8)])
        for number in range(conversations)
    )
    return session_homes.encode(HomeBatch("gateway-00001-deployment-7c9d8f6b5-00017-8443", 1_800_000_000.0, homes))


def prefix_delta(sequence: int, blocks: int) -> bytes:
    """Return a delta of one replica: `blocks` new blocks, and the removal of the previous delta's blocks."""
    came, went = _blocks(sequence, blocks), _blocks(sequence - 1, blocks) if sequence > 1 else b""
    return prefix_updates.encode(Delta(replica_of(1), pool_of(1), _INCARNATION, sequence, 16, came, went))


def _blocks(sequence: int, blocks: int) -> bytes:
    return hashlib.shake_128(b"%d" % sequence).digest(8 * blocks)


def prefix_ask(number: int) -> bytes:
    return prefix_updates.encode(PrefixRequest(pool_of(number), "events"))
