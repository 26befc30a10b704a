"""Single passes of the garbage collector over a store in memory: deletions, grace periods and aborts."""

from collections.abc import Iterable

import pytest

from functions.api.ids import Digest
from functions.artifacts import manifest as manifests
from functions.artifacts.collect import Collected, collect
from functions.artifacts.collect_reach import CollectedStore
from functions.artifacts.errors import ArtifactCorrupt, StoreUnavailable
from functions.artifacts.ingest.ingest import object_keys
from functions.artifacts.locations import chunk_key, manifest_key
from tests.artifacts.gc_ledger import FileLedger
from tests.artifacts.memory_store import MemoryStore
from tests.artifacts.small_artifacts import artifact

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
ONE = artifact("one", "shared")
TWO = artifact("two", "shared")


class Rig:
    """A store, a ledger and the named artifacts."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.ledger = FileLedger(":memory:")
        self.named: set[Digest] = set()
        self.now_unix_s = 1_700_000_000.0

    def collect(self, *, after_s: float = 0.0, dry_run: bool = False) -> Collected:
        self.now_unix_s += after_s
        return collect(
            self.store,
            lambda: set(self.named),
            self.ledger,
            now_unix_s=self.now_unix_s,
            grace_s=DAY_S,
            dry_run=dry_run,
        )


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    for made in (ONE, TWO):
        rig.store.objects.update(made.objects)
    rig.named = {ONE.digest, TWO.digest}
    return rig


def test_named_artifact_is_not_collected(rig: Rig) -> None:
    for _ in range(3):
        result = rig.collect(after_s=2 * DAY_S)
    assert result == Collected(reachable=5)
    assert rig.store.objects.keys() == ONE.objects.keys() | TWO.objects.keys()


def test_worked_example(rig: Rig) -> None:
    """A version removed at 10:20 is marked at 11:00 and deleted at 11:00 of the next day, by passes every hour."""
    rig.collect()
    rig.named.discard(TWO.digest)
    marked = rig.collect(after_s=HOUR_S)
    assert (marked.candidates, marked.deleted) == (2, 0)
    for _ in range(23):
        assert rig.collect(after_s=HOUR_S).deleted == 0
    gone = rig.collect(after_s=HOUR_S)
    assert gone.deleted == 2
    assert gone.deleted_bytes == sum(len(TWO.objects[key]) for key in TWO.objects.keys() - ONE.objects.keys())
    assert rig.store.objects == ONE.objects
    assert rig.ledger.candidates() == frozenset()


def test_shared_chunk_stays_for_the_remaining_artifact(rig: Rig) -> None:
    rig.named.discard(TWO.digest)
    rig.collect()
    rig.collect(after_s=DAY_S)
    assert rig.store.objects == ONE.objects
    assert chunk_key(ONE.chunk_of("shared")) in rig.store.objects


def test_named_again_within_the_grace_is_no_candidate(rig: Rig) -> None:
    rig.named.discard(TWO.digest)
    rig.collect()
    rig.named.add(TWO.digest)
    rig.collect(after_s=HOUR_S)
    assert rig.ledger.candidates() == frozenset()
    rig.named.discard(TWO.digest)
    assert rig.collect(after_s=DAY_S).deleted == 0  # the grace period starts again


def test_a_pointer_keeps_what_it_names(rig: Rig) -> None:
    rig.named.clear()
    rig.store.objects["acme/bot/v1/shoal-manifest.json"] = ONE.document
    rig.collect()
    rig.collect(after_s=DAY_S)
    assert rig.store.objects.keys() - {"acme/bot/v1/shoal-manifest.json"} == ONE.objects.keys()
    del rig.store.objects["acme/bot/v1/shoal-manifest.json"]
    rig.collect(after_s=HOUR_S)
    rig.collect(after_s=DAY_S)
    assert rig.store.objects == {}


def test_other_objects_are_not_collected(rig: Rig) -> None:
    rig.store.objects["acme/notes.txt"] = b"mine"
    rig.named.clear()
    rig.collect()
    rig.collect(after_s=DAY_S)
    assert rig.store.objects == {"acme/notes.txt": b"mine"}


def test_chunks_of_a_killed_upload_go(rig: Rig) -> None:
    rig.store.objects[chunk_key("a" * 64)] = b"half an upload"
    rig.collect()
    assert rig.collect(after_s=DAY_S).deleted == 1


def test_a_root_that_the_store_lacks_is_reported(rig: Rig) -> None:
    lost = Digest("sha256:" + "5" * 64)
    rig.named.add(lost)
    assert rig.collect().missing == (lost,)


def test_digest_prefix_held_by_a_replica_protects_the_artifact(rig: Rig) -> None:
    rig.named = {Digest(ONE.digest[: len("sha256:") + 16]), Digest("sha256:" + "5" * 16)}
    rig.collect()
    result = rig.collect(after_s=DAY_S)
    assert rig.store.objects == ONE.objects
    assert result.missing == ()


def test_open_ingest_protects_objects_marked_later(rig: Rig) -> None:
    rig.named.clear()
    session = rig.ledger.begin_ingest(rig.now_unix_s, rig.now_unix_s + 10 * DAY_S)
    rig.collect()
    assert rig.collect(after_s=DAY_S).deleted == 0
    assert rig.ledger.end_ingest(session)
    assert rig.collect(after_s=1.0).deleted == 5


def test_expired_ingest_protects_nothing_and_fails(rig: Rig) -> None:
    rig.named.clear()
    session = rig.ledger.begin_ingest(rig.now_unix_s, rig.now_unix_s + HOUR_S)
    rig.collect()
    assert rig.collect(after_s=DAY_S).deleted == 5
    assert not rig.ledger.end_ingest(session)


def test_later_ingest_unmarks_its_objects(rig: Rig) -> None:
    rig.named.discard(TWO.digest)
    rig.collect()
    session = rig.ledger.begin_ingest(rig.now_unix_s, rig.now_unix_s + 10 * DAY_S)
    assert rig.ledger.unmark(object_keys(TWO.digest, TWO.manifest)) == frozenset()
    assert rig.collect(after_s=DAY_S).deleted == 0
    assert rig.ledger.end_ingest(session)


def test_artifact_named_during_a_pass_is_spared(rig: Rig) -> None:
    rig.named.clear()
    rig.collect()
    rig.now_unix_s += DAY_S
    answers: list[set[Digest]] = [set(), {ONE.digest}]
    result = collect(rig.store, lambda: answers.pop(0), rig.ledger, now_unix_s=rig.now_unix_s, grace_s=DAY_S)
    assert (result.spared, result.deleted) == (3, 2)
    assert rig.store.objects == ONE.objects


def test_a_dry_run_changes_nothing(rig: Rig) -> None:
    rig.named.clear()
    assert rig.collect(dry_run=True).candidates == 5
    assert rig.ledger.candidates() == frozenset()
    rig.collect()
    assert rig.collect(after_s=DAY_S, dry_run=True).deleted == 0
    assert len(rig.store.objects) == 5


@pytest.mark.parametrize("content", [b"", b"{}", b'{"schema_version":3}', ONE.document[:-1]])
def test_a_pointer_that_cannot_be_read_stops_everything(rig: Rig, content: bytes) -> None:
    rig.named.clear()
    rig.collect()
    rig.store.objects["acme/bot/v1/shoal-manifest.json"] = content
    with pytest.raises(ArtifactCorrupt, match=r"acme/bot/v1/shoal-manifest\.json cannot be read"):
        rig.collect(after_s=DAY_S)
    assert len(rig.store.objects) == 6


def test_a_manifest_with_other_content_stops_everything(rig: Rig) -> None:
    rig.store.objects[manifest_key(manifests.hex_of(ONE.digest))] = TWO.document
    rig.named.discard(TWO.digest)
    with pytest.raises(ArtifactCorrupt, match="has other content"):
        rig.collect()
    assert rig.ledger.candidates() == frozenset()


def test_a_pointer_of_schema_1_keeps_nothing_else(rig: Rig) -> None:
    rig.named.clear()
    rig.store.objects["acme/old/v1/shoal-manifest.json"] = b'{"schema_version":1,"files":[]}'
    rig.collect()
    assert rig.collect(after_s=DAY_S).deleted == 5


class _Stubborn(MemoryStore):
    """Store that refuses to delete while `down`."""

    down = True

    def delete(self, keys: Iterable[str]) -> None:
        if self.down:
            raise StoreUnavailable("503")
        super().delete(keys)


def test_failed_deletion_is_retried_by_the_next_pass(rig: Rig) -> None:
    stubborn = _Stubborn()
    stubborn.objects = rig.store.objects
    rig.store = stubborn
    rig.named = {ONE.digest}
    rig.collect()
    with pytest.raises(StoreUnavailable):
        rig.collect(after_s=DAY_S)
    assert len(rig.ledger.in_deletion()) == 2
    stubborn.down = False
    assert rig.collect(after_s=1.0).deleted == 2
    assert rig.store.objects == ONE.objects


def test_memory_store_matches_the_collector_protocol() -> None:
    store: CollectedStore = MemoryStore()
    assert list(store.list("")) == []
