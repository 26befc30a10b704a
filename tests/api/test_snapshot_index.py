"""The snapshot index: small changes are cheap, and a delta yields exactly the same content as the whole document."""

import random
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.api import snapshot as snapshots
from functions.api import snapshot_comparison
from functions.api import snapshot_document as documents
from functions.api.ids import KeyId, PoolName, TenantId
from functions.api.snapshot import KeyEntry, PoolEntry, QuotaEntry, Snapshot, SnapshotInvalid, TenantEntry
from functions.api.snapshot_document import BaseMissing, in_chunks
from functions.api.snapshot_index import Indexed, changes_between, empty, indexed

NAMES = [f"t{number}" for number in range(12)]


def snapshot(tenants: Iterable[TenantEntry], keys: Iterable[KeyEntry] = (), epoch: int = 1, **more: Any) -> Snapshot:
    by_name = sorted(tenants, key=lambda tenant: tenant.name)
    by_id = sorted(keys, key=lambda key: key.key_id)
    return Snapshot(snapshots.SCHEMA_VERSION, epoch, "r", 1.0, tuple(by_name), tuple(by_id), (), (), **more)


def tenant(name: str, tier: str = "standard") -> TenantEntry:
    return TenantEntry(TenantId(name), tier, ("*",))


def key(key_id: str, owner: str, scopes: tuple[Any, ...] = ("inference",)) -> KeyEntry:
    return KeyEntry(KeyId(key_id), TenantId(owner), "0" * 64, scopes, "batch")


@st.composite
def contents(draw: st.DrawFn) -> Snapshot:
    tiers = draw(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(["a", "b"])))
    owners = draw(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(sorted(tiers)))) if tiers else {}
    quotas = draw(st.sets(st.sampled_from(["q1", "q2"])))
    return snapshot(
        [tenant(name, tier) for name, tier in tiers.items()],
        [key(name, owner) for name, owner in owners.items()],
        quotas=tuple(QuotaEntry(name) for name in sorted(quotas)),
    )


def delta(old: Indexed, new: Indexed) -> bytes:
    return b"".join(documents.delta_lines(new.snapshot, old.content_hash, changes_between(old, new)))


@settings(deadline=None, max_examples=200)
@given(contents(), contents())
def test_a_delta_leads_where_the_whole_leads(before: Snapshot, after: Snapshot) -> None:
    old, new = indexed(before), indexed(after)
    reached = documents.read(in_chunks(delta(old, new)), old)
    assert reached.snapshot == after == new.snapshot
    assert reached.tables == new.tables
    assert reached.tree == new.tree, "as if it had been built from nothing"
    assert reached.content_hash == snapshots.content_hash(after)


@settings(deadline=None)
@given(contents())
def test_the_tree_knows_how_long_the_document_is(it: Snapshot) -> None:
    header, *lines = documents.full_lines(indexed(it).snapshot)
    assert indexed(it).tree.size_bytes == sum(map(len, lines)), header


def test_deltas_never_make_what_cannot_be_sent_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    old = indexed(snapshot([tenant(f"t{number}") for number in range(20)]))
    new = indexed(snapshot([tenant(f"t{number}") for number in range(21)], epoch=2))
    monkeypatch.setattr(documents, "SNAPSHOT_MAX_BYTES", len(snapshots.encode(new.snapshot)))
    assert documents.read(in_chunks(delta(old, new)), old).content_hash == new.content_hash
    monkeypatch.setattr(documents, "SNAPSHOT_MAX_BYTES", len(snapshots.encode(new.snapshot)) - 1)
    with pytest.raises(SnapshotInvalid, match="over the limit"):
        documents.read(in_chunks(delta(old, new)), old)


@settings(deadline=None)
@given(contents(), contents())
def test_the_whole_on_a_base_is_the_whole(before: Snapshot, after: Snapshot) -> None:
    reached = documents.read(in_chunks(snapshots.encode(after)), indexed(before))
    assert (reached.snapshot, reached.tree) == (after, indexed(after).tree)


@settings(deadline=None)
@given(contents(), contents())
def test_hashes_are_equal_only_for_equal_contents(first: Snapshot, second: Snapshot) -> None:
    assert (snapshots.content_hash(first) == snapshots.content_hash(second)) == (first == second)


@settings(deadline=None)
@given(contents(), st.integers(1, 200))
def test_where_a_document_is_cut_into_chunks_does_not_matter(it: Snapshot, size: int) -> None:
    document = snapshots.encode(it)
    chunks = [document[start : start + size] for start in range(0, len(document), size)]
    assert documents.read(chunks, empty()).snapshot == it


def test_what_did_not_change_is_the_same_object() -> None:
    base = indexed(snapshot([tenant(name) for name in NAMES]))
    changed = snapshot([tenant(name, "b" if name == "t3" else "standard") for name in NAMES])
    for content in (
        indexed(changed, base),
        documents.read(in_chunks(snapshots.encode(changed)), base),
        documents.read(in_chunks(delta(base, indexed(changed))), base),
    ):
        shared = {
            entry.name
            for old, entry in zip(base.snapshot.tenants, content.snapshot.tenants, strict=True)
            if entry is old
        }
        assert shared == set(NAMES) - {"t3"}
        assert content.tables.keys is base.tables.keys, "a section without a change is not even copied"


def test_an_applied_delta_leaves_its_base_alone() -> None:
    base = indexed(snapshot([tenant("a"), tenant("b")]))
    before = (dict(base.tables.tenants), base.snapshot, base.content_hash)
    documents.read(in_chunks(delta(base, indexed(snapshot([tenant("c")])))), base)
    assert (base.tables.tenants, base.snapshot, base.content_hash) == before


def test_a_delta_is_for_its_base_only() -> None:
    first, second = indexed(snapshot([tenant("a")])), indexed(snapshot([tenant("b")]))
    with pytest.raises(BaseMissing, match="a delta for sha256:"):
        documents.read(in_chunks(delta(first, second)), second)
    with pytest.raises(BaseMissing):
        snapshots.decode(delta(first, second))


def test_removing_what_others_point_at_is_refused() -> None:
    base = indexed(snapshot([tenant("a")], [key("k", "a")]))
    lines = documents.delta_lines(base.snapshot, base.content_hash, {"tenants": {"a": None}})
    with pytest.raises(SnapshotInvalid, match="key k belongs to tenant a, which is not in the snapshot"):
        documents.read(lines, base)


def test_a_delta_may_not_remove_what_is_not_there() -> None:
    base = indexed(snapshot([tenant("a")]))
    lines = documents.delta_lines(base.snapshot, base.content_hash, {"tenants": {"b": None}})
    with pytest.raises(SnapshotInvalid, match="removes the tenant b, which is not in its base"):
        documents.read(lines, base)


def test_only_buckets_that_differ_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"tenant-{number:05d}" for number in range(5000)]
    old = indexed(snapshot([tenant(name) for name in names]))
    new = indexed(snapshot([tenant(name, "b" if name == names[7] else "standard") for name in names]), old)
    before, after = old.tree.branches["tenants"], new.tree.branches["tenants"]
    assert sum(a != b for a, b in zip(before.digests, after.digests, strict=True)) == 1
    assert sum(a is not b for a, b in zip(before.names, after.names, strict=True)) <= 1
    assert changes_between(old, new) == {"tenants": {names[7]: new.tables.tenants[TenantId(names[7])]}}


def test_long_work_yields_to_the_event_loop() -> None:
    names = [f"t{number:05d}" for number in range(5000)]
    breaths = 0

    def breathe() -> None:
        nonlocal breaths
        breaths += 1

    document = snapshots.encode(snapshot([tenant(name) for name in names]))
    documents.read(in_chunks(document), empty(), breathe)
    assert breaths >= 3 * len(names) / snapshot_comparison.SLICE


def test_integer_and_float_weights_have_the_same_hash() -> None:
    """A weight written as 2 and one written as 2.0 are the same content and must have the same hash."""
    row = b'{"is":"snapshot","schema_version":3,"epoch":1,"revision":"r","compiled_unix_s":1}\n'
    whole, fraction = (row + b'{"is":"quota","name":"q","weight":%b,"limits":{}}\n' % text for text in (b"2", b"2.0"))
    assert snapshots.encode(snapshots.decode(whole)) == snapshots.encode(snapshots.decode(fraction))


@settings(deadline=None)
@given(st.lists(contents(), min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_sequence_of_updates_ends_at_the_last_content(steps: list[Snapshot], rng: random.Random) -> None:
    """Each step is applied as a delta or as a whole document."""
    reached = empty()
    for epoch, step in enumerate(steps, start=1):
        wanted = indexed(msgspec.structs.replace(step, epoch=epoch))
        document = delta(reached, wanted) if rng.random() < 0.7 else snapshots.encode(wanted.snapshot)
        reached = documents.read(in_chunks(document), reached)
    assert reached.snapshot == wanted.snapshot
    assert reached.tree == indexed(wanted.snapshot).tree


def test_a_pool_and_a_tenant_of_one_name_are_two_things() -> None:
    it = msgspec.structs.replace(snapshot([tenant("a")]), pools=(PoolEntry(PoolName("a"), 2048),))
    assert snapshots.decode(snapshots.encode(it)) == it
