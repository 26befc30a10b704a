"""Where adapters are: each version once, in the best tier that a ready replica has it in."""

from functions.api.ids import Digest, EngineName, ModelId, engine_name
from functions.decisions.distribution import bloom
from functions.registry.console_tiers import Tiers, tiers_of
from tests.fleet.builders import beat as heartbeat

DIGESTS = [Digest("sha256:" + f"{number:02x}" * 32) for number in range(1, 5)]
NAMES = [engine_name(ModelId(f"acme/a{number}"), digest) for number, digest in enumerate(DIGESTS)]


def disk(*digests: Digest) -> str:
    built = bloom.build(digests)
    assert built is not None
    return built.encode()


def counted(tiers: tuple[Tiers, ...]) -> list[tuple[str, int, int, int, int]]:
    return [(each.pool, each.registered, each.in_engine, each.on_disk, each.in_store) for each in tiers]


def test_each_version_counts_once_in_its_best_tier() -> None:
    heartbeats = [
        heartbeat(replica_id="r0", adapters=(NAMES[0], "base"), disk_bloom=disk(DIGESTS[0], DIGESTS[1])),
        heartbeat(replica_id="r1", adapters=(NAMES[0], NAMES[1]), disk_bloom=disk(*DIGESTS[:3])),
    ]
    adapters = [("base", name) for name in NAMES]
    assert counted(tiers_of(adapters, heartbeats)) == [("base", 4, 2, 1, 1)]


def test_replica_that_is_not_ready_counts_in_no_tier() -> None:
    heartbeats = [heartbeat(phase="starting", adapters=tuple(NAMES), disk_bloom=disk(*DIGESTS))]
    assert counted(tiers_of([("base", name) for name in NAMES], heartbeats)) == [("base", 4, 0, 0, 4)]


def test_tiers_are_per_pool_and_omit_pools_without_adapters() -> None:
    heartbeats = [heartbeat(pool="one", adapters=tuple(NAMES)), heartbeat(pool="three", replica_id="r1")]
    adapters = [("one", NAMES[0]), ("two", NAMES[1])]
    assert counted(tiers_of(adapters, heartbeats)) == [("one", 1, 1, 0, 0), ("two", 1, 0, 0, 1)]


def test_load_failures_are_listed_with_their_reason() -> None:
    bad = EngineName("acme/bad@sha256:0123456789abcdef")
    (tiers,) = tiers_of([("base", NAMES[0])], [heartbeat(adapter_failures={bad: "rank 64 is over 16"})])
    assert tiers.failing == {bad: "rank 64 is over 16"}
