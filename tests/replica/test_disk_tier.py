"""The disk tier is bounded in bytes and never evicts an artifact that an engine of the node may read."""

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from functions.api.ids import Digest, EngineName, ReplicaId
from functions.artifacts import directories
from functions.artifacts import manifest as manifests
from functions.artifacts.cache import ArtifactCache
from functions.artifacts.errors import CacheFailed
from functions.artifacts.fetch import from_cache
from functions.artifacts.manifest import ADAPTER_LIMITS, MANIFEST_NAME
from functions.decisions.distribution import bloom
from functions.replica.disk_tier import (
    IN_HAND_S,
    LEASE_S,
    LINGER_S,
    DigestStart,
    DiskKeeper,
    DiskNeeds,
    DiskTier,
    start_in,
    start_of,
)
from functions.replica.status import Adapters
from tests.artifacts.adapter_files import make_adapter
from tests.artifacts.descriptors import no_descriptors
from tests.replica.statuses import Clock, make_status


@dataclass
class Node:
    """Cache of one node with small adapters, the oldest first."""

    root: Path
    now_unix_s: float = 1_000_000.0
    now_s: float = 5_000.0  # since the node's boot

    @property
    def cache(self) -> ArtifactCache:
        return ArtifactCache(self.root / "cache")

    def put(self, seed: int) -> Digest:
        source = make_adapter(self.root / "sources" / str(seed), seed=seed)
        document = manifests.encode(directories.build_manifest(source, ADAPTER_LIMITS))
        (source / MANIFEST_NAME).write_bytes(document)
        digest = manifests.digest_of(document)
        self.cache.install(source, digest)
        os.utime(self.cache.path_of(digest), (seed, seed))
        return digest

    def tier(self, name: str, max_bytes: int) -> DiskTier:
        return DiskTier(self.cache, ReplicaId(name), max_bytes, self.wall_clock, self.clock)

    def wall_clock(self) -> float:
        return self.now_unix_s

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_unix_s += seconds
        self.now_s += seconds

    def held(self) -> set[Digest]:
        return {artifact.digest for artifact in self.cache.digests()}


def starts(*digests: Digest) -> frozenset[DigestStart]:
    return frozenset(map(start_of, digests))


def size_of_one(node: Node) -> int:
    return node.cache.digests()[0].size_bytes


def test_the_least_recently_used_leave_and_the_filter_says_what_is_left(tmp_path: Path) -> None:
    node = Node(tmp_path)
    digests = [node.put(seed) for seed in range(1, 6)]
    disk = node.tier("r0", 3 * size_of_one(node)).tend()
    assert node.held() == set(digests[2:])
    assert (disk.artifacts, disk.size_bytes) == (3, 3 * size_of_one(node))
    told = bloom.decode(disk.bloom)
    assert told is not None
    assert [told.holds(digest) for digest in digests] == [False, False, True, True, True]


def test_artifacts_leased_on_the_node_are_not_evicted(tmp_path: Path) -> None:
    node = Node(tmp_path)
    digests = [node.put(seed) for seed in range(1, 6)]
    first, second = node.tier("r0", size_of_one(node)), node.tier("r1", size_of_one(node))
    first.lease(starts(digests[0]))
    second.lease(starts(digests[1]))
    first.tend()
    assert {digests[0], digests[1]} <= node.held()
    assert len(node.held()) == 2, "over the bound, by what is needed and no more"


def test_a_killed_agents_lease_outlives_it_and_a_forgotten_one_ends(tmp_path: Path) -> None:
    node = Node(tmp_path)
    old, new = node.put(1), node.put(2)
    node.tier("gone", 1).lease(starts(old))
    lease = tmp_path / "cache" / "leases" / "gone.json"
    node.sleep(LEASE_S - 1)
    node.tier("r0", size_of_one(node)).tend()
    assert node.held() == {old}
    node.put(3)
    node.sleep(2)
    node.tier("r0", size_of_one(node)).tend()
    assert old not in node.held()
    assert not lease.exists()
    assert new not in node.held()


def test_a_lease_that_is_rubbish_protects_nothing_and_breaks_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    digests = [node.put(seed) for seed in (1, 2)]
    leases = tmp_path / "cache" / "leases"
    leases.mkdir()
    for name, content in {"a": b"\xff", "b": b"{}", "c": b"[" * 100_000, "d": b"[1, null]"}.items():
        (leases / f"{name}.json").write_bytes(content)
        os.utime(leases / f"{name}.json", (node.now_unix_s, node.now_unix_s))
    (leases / "e.json").symlink_to("/etc/passwd")
    node.tier("r0", size_of_one(node)).tend()
    assert node.held() == {digests[1]}


def test_a_lease_is_written_when_it_changes_and_once_a_minute(tmp_path: Path) -> None:
    node = Node(tmp_path)
    digest = node.put(1)
    tier = node.tier("r0", 10**9)
    tier.lease(starts(digest))
    lease = tmp_path / "cache" / "leases" / "r0.json"
    assert json.loads(lease.read_text()) == ["monotonic_s=5000.000", start_of(digest)]
    os.utime(lease, (1, 1))
    tier.lease(starts(digest))
    assert lease.stat().st_mtime == 1
    node.now_s += 60
    tier.lease(starts(digest))
    assert lease.stat().st_mtime > 1


@pytest.mark.parametrize("step_s", [-3600, 1200, 86_400])
def test_a_clock_that_is_set_ends_no_lease_and_keeps_nothing_for_ever(tmp_path: Path, step_s: float) -> None:
    node = Node(tmp_path, now_unix_s=10_000.0)
    leased, used, last = (node.put(seed) for seed in (7_000, 8_000, 9_000))
    node.tier("r1", 10**9).lease(starts(leased))
    os.utime(tmp_path / "cache" / "leases" / "r1.json", (node.now_unix_s, node.now_unix_s))
    node.now_unix_s += step_s
    node.tier("r0", size_of_one(node)).tend()
    assert node.held() == {leased}, f"{used} and {last} are needed by nobody"


def test_an_older_agents_lease_counts_by_its_file(tmp_path: Path) -> None:
    node = Node(tmp_path)
    leased, other = node.put(1), node.put(2)
    leases = tmp_path / "cache" / "leases"
    leases.mkdir()
    (leases / "r1.json").write_text(json.dumps([start_of(leased)]))
    os.utime(leases / "r1.json", (node.now_unix_s, node.now_unix_s))
    node.tier("r0", size_of_one(node)).tend()
    assert node.held() == {leased}, f"{other} is needed by nobody"
    node.put(3)
    node.now_unix_s += LEASE_S + 1
    node.tier("r0", size_of_one(node)).tend()
    assert leased not in node.held()


def test_a_lease_from_before_the_node_was_started_anew_protects_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path)
    leased, other = node.put(1), node.put(2)
    node.tier("r1", 10**9).lease(starts(leased))
    node.now_s = 30.0
    node.tier("r0", size_of_one(node)).tend()
    assert node.held() == {other}


def test_a_use_that_a_clock_ahead_wrote_is_written_anew(tmp_path: Path) -> None:
    node = Node(tmp_path)
    digest = node.put(2_000_000)
    tier = node.tier("r0", 10**9)
    tier.lease(starts(digest))
    tier.tend()
    assert node.cache.digests()[0].last_used_unix_s == node.now_unix_s


def test_artifact_in_use_stays_until_its_lease_exists(tmp_path: Path) -> None:
    """An engine reads a new adapter's directory again later, so the directory must not be evicted in between."""
    node = Node(tmp_path, now_unix_s=time.time())
    leased, in_hand = node.put(1), node.put(2)
    node.tier("r0", 10**9).lease(starts(leased))
    assert from_cache(node.cache, in_hand) is not None
    node.tier("r1", 1).tend()
    assert node.held() == {leased, in_hand}
    node.now_unix_s += IN_HAND_S + 1
    node.tier("r1", 1).tend()
    assert node.held() == {leased}


class UsedMeanwhile(set[Digest]):
    """Empty set of pins; each lookup simulates another agent that takes the artifact at that moment."""

    def __init__(self, cache: ArtifactCache) -> None:
        super().__init__()
        self.cache = cache

    def __contains__(self, digest: object) -> bool:
        from_cache(self.cache, Digest(str(digest)))
        return False


def test_artifact_used_during_an_eviction_stays(tmp_path: Path) -> None:
    node = Node(tmp_path)
    digest = node.put(1)
    assert node.cache.evict(0, UsedMeanwhile(node.cache), used_before_unix_s=time.time() - IN_HAND_S) == []
    assert node.held() == {digest}


def test_unwritable_lease_does_not_stop_eviction(tmp_path: Path) -> None:
    """Otherwise a full disk would stay full."""
    node = Node(tmp_path)
    needed, other = node.put(1), node.put(2)
    (tmp_path / "cache" / "leases").write_text("in the way")
    tier = node.tier("r0", size_of_one(node))
    with pytest.raises(CacheFailed, match="lease"):
        tier.lease(starts(needed))
    tier.tend()
    assert node.held() == {needed}
    (tmp_path / "cache" / "leases").unlink()
    tier.lease(starts(needed))
    assert json.loads((tmp_path / "cache" / "leases" / "r0.json").read_text())[1:] == [start_of(needed)], "tried again"
    assert other not in node.held()


@pytest.mark.parametrize("left", [0, 1, 2])
def test_nothing_that_is_leased_leaves_for_want_of_descriptors(tmp_path: Path, left: int) -> None:
    node = Node(tmp_path)
    needed = node.put(1)
    node.tier("r0", 10**9).lease(starts(needed))
    os.utime(tmp_path / "cache" / "leases" / "r0.json", (node.now_unix_s, node.now_unix_s))
    with no_descriptors(left=left), suppress(CacheFailed):
        node.tier("r1", 1).tend()
    assert node.held() == {needed}


def name_of(digest: Digest) -> EngineName:
    return EngineName(f"acme/bot@{digest[:23]}")


def test_unloaded_adapter_stays_leased_for_a_while() -> None:
    one, two = Digest("sha256:" + "1" * 64), Digest("sha256:" + "2" * 64)
    needs = DiskNeeds()
    assert needs.observe([name_of(one)], [name_of(two)], now_s=0.0)
    assert needs.needed(0.0) == starts(one, two)
    assert not needs.observe([name_of(one)], [name_of(two)], now_s=1.0)
    assert needs.observe([name_of(two)], [], now_s=10.0)
    assert needs.needed(10.0 + LINGER_S - 1) == starts(one, two)
    assert needs.needed(10.0 + LINGER_S) == starts(two)
    assert start_in(name_of(one)) == start_of(one)


def test_abandoned_load_stays_leased_for_a_while() -> None:
    """The engine continues a load that its agent no longer waits for."""
    one = Digest("sha256:" + "1" * 64)
    needs = DiskNeeds()
    needs.observe([], [name_of(one)], now_s=0.0)
    assert needs.observe([], [], now_s=100.0)
    assert needs.needed(100.0 + LINGER_S - 1) == starts(one)
    assert needs.needed(100.0 + LINGER_S) == starts()


async def test_previous_agents_lease_counts_until_the_engine_answers(tmp_path: Path) -> None:
    node, clock = Node(tmp_path), Clock()
    old = node.put(1)
    node.tier("r0", 10**9).lease(starts(old))
    status, needs = make_status(clock=clock, adapters=Adapters()), DiskNeeds()
    keeper = DiskKeeper(status, node.tier("r0", 1), needs)
    await keeper.tend()
    assert node.held() == {old}
    status.adapters = Adapters(known=True)
    needs.observe([name_of(old)], [], clock())
    await keeper.tend()
    assert (node.held(), status.disk.artifacts) == ({old}, 1)
    needs.observe([], [], clock())
    clock.now_s += LINGER_S
    node.now_unix_s += LINGER_S
    await keeper.tend()
    assert (node.held(), status.disk.artifacts, status.disk.bloom) == (set(), 0, "")


async def test_failing_disk_is_reported_and_tolerated(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "leases").write_text("in the way")
    status, needs = make_status(), DiskNeeds()
    needs.observe([name_of(Digest("sha256:" + "1" * 64))], [], status.clock())
    await DiskKeeper(status, Node(tmp_path).tier("r0", 1), needs).tend()
    assert status.disk.artifacts == 0
