"""Disaggregated prefill: when a split pays, and which prefill pool serves which pool."""

from typing import Any

import msgspec
import pytest

from functions.api.ids import Digest, PoolName, ReplicaId, TenantId
from functions.api.snapshot import PoolEntry
from functions.decisions.routing.disaggregation import compare_split, prefill_pools, reason_to_skip, transfer_ms
from functions.decisions.routing.replicas import ReplicaView
from functions.decisions.routing.request import NoReplica, Prediction

LLAMA, PREFILL = PoolName("llama"), PoolName("llama-prefill")
ENTRY = PoolEntry(
    PREFILL, 8192, model=LLAMA, role="prefill", kv_bytes_per_token=131_072, kv_transfer_bytes_per_s=12.5e9
)


def replica(name: str, weights: Digest | None = None) -> ReplicaView:
    return ReplicaView(
        ReplicaId(name), LLAMA, "127.0.0.1", 1, "ready", 0, 0, 0.1, frozenset(), 50.0, 0.1, weights=weights
    )


def predicted(
    queue_ms: float, prefill_ms: float, outstanding: int = 0, cached: int = 0, weights: Digest | None = None
) -> Prediction:
    return Prediction(replica("r", weights), outstanding, queue_ms, prefill_ms, cached)


def test_worked_example_of_the_prologue() -> None:
    assert round(transfer_ms(8000, ENTRY)) == 84
    busy = compare_split(8000, predicted(50.0, 800.0, outstanding=10), predicted(300.0, 800.0), ENTRY)
    assert (round(busy.one_ms), round(busy.split_ms), busy.why) == (1250, 1194, "pays")
    calm = compare_split(8000, predicted(50.0, 800.0, outstanding=6), predicted(300.0, 800.0), ENTRY)
    assert (round(calm.one_ms), calm.why) == (1090, "slower")


def test_worked_example_of_demand() -> None:
    """Demand counts prompts that the prefill queue turns away; otherwise a full prefill pool would look just busy
    enough.
    """
    full = predicted(300.0, 800.0)
    assert compare_split(8000, predicted(50.0, 800.0, outstanding=10), full, ENTRY).is_demand
    calm = compare_split(8000, predicted(50.0, 800.0, outstanding=6), full, ENTRY)
    assert (calm.why, calm.is_demand, calm.wait_ms) == ("slower", True, 300.0)
    assert not compare_split(8000, predicted(50.0, 800.0, outstanding=1), full, ENTRY).is_demand


@pytest.mark.parametrize(
    ("reason", "is_demand"),
    [
        ("pool_empty", True),
        ("no_replica_ready", True),
        ("told_to_wait", True),
        ("all_tried", True),
        ("adapter_not_loaded", False),
        ("weights_not_loaded", False),
        ("dedicated", False),
    ],
)
def test_only_capacity_reasons_count_as_demand(reason: Any, is_demand: bool) -> None:
    busy, calm = predicted(50.0, 800.0, outstanding=10), predicted(50.0, 800.0, outstanding=1)
    assert compare_split(8000, busy, NoReplica(reason), ENTRY).is_demand == is_demand
    assert not compare_split(8000, calm, NoReplica(reason), ENTRY).is_demand, "it reads as soon by itself"


def test_more_streams_only_favor_a_split() -> None:
    """A stall counted with the wrong sign would send prompts away from idle replicas."""
    pays = [compare_split(8000, predicted(0.0, 800.0, n), predicted(0.0, 800.0), ENTRY).pays for n in range(40)]
    assert pays == sorted(pays) and not pays[0] and pays[-1]


def test_a_slow_link_never_pays() -> None:
    slow = msgspec.structs.replace(ENTRY, kv_transfer_bytes_per_s=125e6)  # 1 Gbit/s: 8.4 s for these
    assert compare_split(8000, predicted(0.0, 800.0, 20), predicted(0.0, 800.0), slow).why == "slower"


def test_tokens_cached_at_the_decoder_are_not_transferred() -> None:
    all_of_it = compare_split(8000, predicted(0.0, 800.0, 30), predicted(0.0, 800.0), ENTRY)
    half = compare_split(8000, predicted(0.0, 400.0, 30, cached=4000), predicted(0.0, 800.0), ENTRY)
    assert half.transfer_ms == pytest.approx(all_of_it.transfer_ms / 2)


def test_decode_queue_drains_during_the_prefill() -> None:
    found = compare_split(8000, predicted(5000.0, 800.0, 30), predicted(0.0, 800.0), ENTRY)
    assert found.split_ms == 5000.0 and found.pays


@pytest.mark.parametrize(
    ("tokens", "cached", "why"),
    [(2047, 0, "short"), (2048, 0, None), (9000, 8000, "cached"), (9000, 6952, None)],
)
def test_short_and_cached_prompts_skip_the_split(tokens: int, cached: int, why: str | None) -> None:
    assert reason_to_skip(tokens, cached, 2048) == why


def test_replicas_with_other_weights_do_not_split() -> None:
    old, new = Digest("sha256:" + "a" * 64), Digest("sha256:" + "b" * 64)
    long, quick = predicted(0.0, 800.0, 30, weights=old), predicted(0.0, 1.0, weights=new)
    assert compare_split(8000, long, quick, ENTRY).why == "other_weights"
    assert compare_split(8000, long, NoReplica("weights_not_loaded"), ENTRY).why == "other_weights"
    assert compare_split(8000, long, predicted(0.0, 1.0), ENTRY).pays  # an older agent reports no weights


def test_prefill_pool_serves_pools_of_the_same_kind_and_tenants() -> None:
    """A prefill pool of other tenants would compute a dedicated tenant's prompts on shared accelerators."""
    acme = (TenantId("acme"),)
    pools = [
        PoolEntry(LLAMA, 8192),
        PoolEntry(PoolName("llama-fp8"), 8192, model=LLAMA, quantization="fp8"),
        PoolEntry(PoolName("llama-acme"), 8192, model=LLAMA, dedicated_to=acme),
        ENTRY,
        msgspec.structs.replace(ENTRY, name=PoolName("z-prefill")),
    ]
    assert prefill_pools({LLAMA: pools}) == {LLAMA: ENTRY}
    own = msgspec.structs.replace(ENTRY, name=PoolName("acme-prefill"), dedicated_to=acme)
    assert prefill_pools({LLAMA: [*pools, own]})[PoolName("llama-acme")] is own
