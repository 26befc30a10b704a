"""Single passes of the collector over a store in memory: what stays, what goes, when, and what stops it."""

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


class World:
    """A store, a ledger and what is named."""

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
def world() -> World:
    world = World()
    for made in (ONE, TWO):
        world.store.objects.update(made.objects)
    world.named = {ONE.digest, TWO.digest}
    return world


def test_what_is_named_stays(world: World) -> None:
    for _ in range(3):
        result = world.collect(after_s=2 * DAY_S)
    assert result == Collected(reachable=5)
    assert world.store.objects.keys() == ONE.objects.keys() | TWO.objects.keys()


def test_worked_example(world: World) -> None:
    """A version removed at 10:20 is marked at 11:00 and deleted at 11:00 of the next day, by passes every hour."""
    world.collect()
    world.named.discard(TWO.digest)
    marked = world.collect(after_s=HOUR_S)
    assert (marked.candidates, marked.deleted) == (2, 0)
    for _ in range(23):
        assert world.collect(after_s=HOUR_S).deleted == 0
    gone = world.collect(after_s=HOUR_S)
    assert gone.deleted == 2
    assert gone.deleted_bytes == sum(len(TWO.objects[key]) for key in TWO.objects.keys() - ONE.objects.keys())
    assert world.store.objects == ONE.objects
    assert world.ledger.candidates() == frozenset()


def test_what_two_share_stays_for_the_one_that_is_left(world: World) -> None:
    world.named.discard(TWO.digest)
    world.collect()
    world.collect(after_s=DAY_S)
    assert world.store.objects == ONE.objects
    assert chunk_key(ONE.chunk_of("shared")) in world.store.objects


def test_named_again_within_the_grace_is_no_candidate(world: World) -> None:
    world.named.discard(TWO.digest)
    world.collect()
    world.named.add(TWO.digest)
    world.collect(after_s=HOUR_S)
    assert world.ledger.candidates() == frozenset()
    world.named.discard(TWO.digest)
    assert world.collect(after_s=DAY_S).deleted == 0  # the grace begins anew


def test_a_pointer_keeps_what_it_names(world: World) -> None:
    world.named.clear()
    world.store.objects["acme/bot/v1/shoal-manifest.json"] = ONE.document
    world.collect()
    world.collect(after_s=DAY_S)
    assert world.store.objects.keys() - {"acme/bot/v1/shoal-manifest.json"} == ONE.objects.keys()
    del world.store.objects["acme/bot/v1/shoal-manifest.json"]
    world.collect(after_s=HOUR_S)
    world.collect(after_s=DAY_S)
    assert world.store.objects == {}


def test_what_is_neither_chunk_nor_manifest_is_left_alone(world: World) -> None:
    world.store.objects["acme/notes.txt"] = b"mine"
    world.named.clear()
    world.collect()
    world.collect(after_s=DAY_S)
    assert world.store.objects == {"acme/notes.txt": b"mine"}


def test_chunks_of_a_killed_upload_go(world: World) -> None:
    world.store.objects[chunk_key("a" * 64)] = b"half an upload"
    world.collect()
    assert world.collect(after_s=DAY_S).deleted == 1


def test_a_root_that_the_store_lacks_is_reported(world: World) -> None:
    lost = Digest("sha256:" + "5" * 64)
    world.named.add(lost)
    assert world.collect().missing == (lost,)


def test_a_replica_names_what_it_holds_by_the_beginning_of_its_digest(world: World) -> None:
    world.named = {Digest(ONE.digest[: len("sha256:") + 16]), Digest("sha256:" + "5" * 16)}
    world.collect()
    result = world.collect(after_s=DAY_S)
    assert world.store.objects == ONE.objects
    assert result.missing == ()


def test_an_open_ingest_keeps_what_was_marked_after_it_began(world: World) -> None:
    world.named.clear()
    session = world.ledger.begin_ingest(world.now_unix_s, world.now_unix_s + 10 * DAY_S)
    world.collect()
    assert world.collect(after_s=DAY_S).deleted == 0
    assert world.ledger.end_ingest(session)
    assert world.collect(after_s=1.0).deleted == 5


def test_an_expired_ingest_keeps_nothing_and_learns_of_it(world: World) -> None:
    world.named.clear()
    session = world.ledger.begin_ingest(world.now_unix_s, world.now_unix_s + HOUR_S)
    world.collect()
    assert world.collect(after_s=DAY_S).deleted == 5
    assert not world.ledger.end_ingest(session)


def test_a_later_ingest_takes_its_objects_out(world: World) -> None:
    world.named.discard(TWO.digest)
    world.collect()
    session = world.ledger.begin_ingest(world.now_unix_s, world.now_unix_s + 10 * DAY_S)
    assert world.ledger.unmark(object_keys(TWO.digest, TWO.manifest)) == frozenset()
    assert world.collect(after_s=DAY_S).deleted == 0
    assert world.ledger.end_ingest(session)


def test_named_between_the_two_askings_is_spared(world: World) -> None:
    world.named.clear()
    world.collect()
    world.now_unix_s += DAY_S
    answers: list[set[Digest]] = [set(), {ONE.digest}]
    result = collect(world.store, lambda: answers.pop(0), world.ledger, now_unix_s=world.now_unix_s, grace_s=DAY_S)
    assert (result.spared, result.deleted) == (3, 2)
    assert world.store.objects == ONE.objects


def test_a_dry_run_changes_nothing(world: World) -> None:
    world.named.clear()
    assert world.collect(dry_run=True).candidates == 5
    assert world.ledger.candidates() == frozenset()
    world.collect()
    assert world.collect(after_s=DAY_S, dry_run=True).deleted == 0
    assert len(world.store.objects) == 5


@pytest.mark.parametrize("content", [b"", b"{}", b'{"schema_version":3}', ONE.document[:-1]])
def test_a_pointer_that_cannot_be_read_stops_everything(world: World, content: bytes) -> None:
    world.named.clear()
    world.collect()
    world.store.objects["acme/bot/v1/shoal-manifest.json"] = content
    with pytest.raises(ArtifactCorrupt, match=r"acme/bot/v1/shoal-manifest\.json cannot be read"):
        world.collect(after_s=DAY_S)
    assert len(world.store.objects) == 6


def test_a_manifest_with_other_content_stops_everything(world: World) -> None:
    world.store.objects[manifest_key(manifests.hex_of(ONE.digest))] = TWO.document
    world.named.discard(TWO.digest)
    with pytest.raises(ArtifactCorrupt, match="has other content"):
        world.collect()
    assert world.ledger.candidates() == frozenset()


def test_a_pointer_of_schema_1_keeps_nothing_else(world: World) -> None:
    world.named.clear()
    world.store.objects["acme/old/v1/shoal-manifest.json"] = b'{"schema_version":1,"files":[]}'
    world.collect()
    assert world.collect(after_s=DAY_S).deleted == 5


class _Stubborn(MemoryStore):
    """Refuses to delete while `down`."""

    down = True

    def delete(self, keys: Iterable[str]) -> None:
        if self.down:
            raise StoreUnavailable("503")
        super().delete(keys)


def test_what_the_store_did_not_delete_is_taken_up_by_the_next_pass(world: World) -> None:
    stubborn = _Stubborn()
    stubborn.objects = world.store.objects
    world.store = stubborn
    world.named = {ONE.digest}
    world.collect()
    with pytest.raises(StoreUnavailable):
        world.collect(after_s=DAY_S)
    assert len(world.ledger.in_deletion()) == 2
    stubborn.down = False
    assert world.collect(after_s=1.0).deleted == 2
    assert world.store.objects == ONE.objects


def test_the_store_of_the_tests_is_what_collecting_asks_for() -> None:
    store: CollectedStore = MemoryStore()
    assert list(store.list("")) == []
