"""Which changes count as news; a relist overrides earlier events."""

from typing import Any

import pytest

from functions.controller.kubernetes.run.object_store import ObjectStore, TooManyObjects, WatchedObject, watched_object


def item(name: str = "acme", *, tier: str = "free", version: str = "1", **more: Any) -> WatchedObject:
    metadata = {"name": name, "namespace": "shoal", "uid": "u", "resourceVersion": version, "generation": 1}
    metadata |= more.pop("metadata", {})
    return watched_object({"metadata": metadata, "spec": {"tier": tier}, **more}, "shoal.dev/v1alpha1", "Tenant")


def test_store_keeps_only_the_authors_fields() -> None:
    noise = {"annotations": {"kubectl": "x" * 1000}, "managedFields": [{}], "labels": {"team": "a"}}
    one = item(metadata=noise, status={"conditions": []})
    assert one.document == (
        b'{"apiVersion":"shoal.dev/v1alpha1","kind":"Tenant","metadata":{"labels":{"team":"a"},"name":"acme",'
        b'"namespace":"shoal"},"spec":{"tier":"free"}}'
    )


@pytest.mark.parametrize(
    ("next_one", "is_change"),
    [
        (item(version="2"), False),
        (item(version="2", status={"conditions": [1]}), False),
        (item(version="2", metadata={"finalizers": ["shoal.dev/x"]}), False),
        (item(version="2", tier="gold"), True),
        (item(version="2", metadata={"deletionTimestamp": "now"}), True),
        (item(version="2", metadata={"labels": {"a": "b"}}), True),
        (item(version="2", metadata={"uid": "another"}), True),
    ],
)
def test_only_changes_by_the_author_count(next_one: WatchedObject, is_change: bool) -> None:
    store = ObjectStore()
    assert store.put(item())
    assert store.put(next_one) is is_change
    assert store.get("acme") == next_one


def test_relist_shows_deletions_without_an_event() -> None:
    store = ObjectStore()
    store.replace_all([item("a"), item("b")])
    assert store.replace_all([item("a")])
    assert [one.name for one in store.objects()] == ["a"]
    assert not store.replace_all([item("a", version="9")])


def test_the_first_list_is_news_even_when_it_is_empty() -> None:
    store = ObjectStore()
    assert not store.synced
    assert store.replace_all([])
    assert store.synced


def test_removed_kind_is_unknown_not_empty() -> None:
    store = ObjectStore()
    store.replace_all([item()])
    store.mark_kind_missing()
    assert not store.synced
    assert store.objects()
    assert store.replace_all([item()]), "that it is back is news"


def test_object_over_the_store_limit_is_refused_and_changes_nothing() -> None:
    store = ObjectStore(max_objects=1)
    store.put(item("a"))
    with pytest.raises(TooManyObjects):
        store.put(item("b"))
    with pytest.raises(TooManyObjects):
        store.replace_all([item("a"), item("b")])
    assert [one.name for one in store.objects()] == ["a"]
