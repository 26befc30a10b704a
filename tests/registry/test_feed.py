"""The feed sends what changed since any of the last steps, and the whole content to every other follower."""

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from functions.api import snapshot_document as documents
from functions.api.ids import TenantId
from functions.api.snapshot import TenantEntry
from functions.api.snapshot_index import Indexed, changes_between, empty, indexed
from functions.registry import feed as feeds
from functions.registry.feed import Feed
from tests.fleet.builders import snapshot


def content(epoch: int, tenants: Iterable[tuple[str, str]]) -> Indexed:
    entries = tuple(TenantEntry(TenantId(name), tier, ()) for name, tier in sorted(tenants))
    return indexed(snapshot(epoch=epoch, tenants=entries))


def advance(feed: Feed, new: Indexed) -> None:
    feed.advance(new, changes_between(feed.content, new))


def test_catalogue_is_built_once_per_content() -> None:
    """Building the catalogue walks over all pools, and each tenant request needs one."""
    feed = Feed(content(1, [("a", "x")]))
    first = feed.catalogue
    assert feed.catalogue is first
    advance(feed, content(2, [("a", "y")]))
    assert feed.catalogue is not first and feed.catalogue.tenants[TenantId("a")].tier == "y"


@settings(deadline=None)
@given(
    st.lists(
        st.dictionaries(st.sampled_from("abcd"), st.sampled_from(["x", "y"])).map(lambda it: tuple(it.items())),
        min_size=1,
        max_size=8,
    )
)
def test_delta_from_every_step_gives_the_current_content(steps: list[tuple[tuple[str, str], ...]]) -> None:
    feed = Feed()
    contents = [content(epoch, tenants) for epoch, tenants in enumerate(steps, start=1)]
    for each in contents:
        advance(feed, each)
    for each in contents:
        delta = feed.delta_from(each.content_hash)
        assert delta is not None
        reached = documents.read([delta], each)
        assert (reached.content_hash, reached.snapshot) == (feed.content.content_hash, feed.content.snapshot)


async def test_follower_of_unknown_content_gets_the_whole() -> None:
    feed = Feed()
    advance(feed, content(1, [("a", "x")]))
    assert feed.delta_from("sha256:unknown") is None
    assert feed.delta_from(empty().content_hash) is None, "nothing is no base"
    whole, pieces = await feed.whole()
    assert documents.read(pieces, empty()).snapshot == whole.snapshot == feed.content.snapshot


async def test_whole_content_is_encoded_once() -> None:
    feed = Feed()
    advance(feed, content(1, [("a", "x")]))
    answers = await asyncio.gather(*(feed.whole() for _ in range(5)))
    assert len({id(pieces) for _, pieces in answers}) == 1
    first = feed.delta_from(feed.content.content_hash)
    assert first is feed.delta_from(feed.content.content_hash), "and so is each delta"
    advance(feed, content(2, [("a", "y")]))
    assert documents.read((await feed.whole())[1], empty()).snapshot.epoch == 2


def test_remembered_steps_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "MAX_DELTA_ENTRIES", 3)
    feed = Feed()
    contents = [content(epoch, [("a", f"tier{epoch}")]) for epoch in range(1, 7)]
    for each in contents:
        advance(feed, each)
    known = [each.snapshot.epoch for each in contents if feed.delta_from(each.content_hash) is not None]
    assert known == [3, 4, 5, 6]


async def test_wait_ends_with_the_next_step_or_its_timeout() -> None:
    feed = Feed()
    waiting = asyncio.create_task(feed.wait_for_change(60))
    await asyncio.sleep(0)
    advance(feed, content(1, [("a", "x")]))
    async with asyncio.timeout(20):
        await waiting
        await feed.wait_for_change(0.01)
