"""The copy of the registry's rows, page by page: no row is lost, and a registry with fewer rows is not trusted."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions.api.ids import Digest, KeyId, ModelId
from functions.controller.rollouts.book import Book, Contradiction, decode, encode, fold_page, with_rows
from functions.controller.rollouts.client import ApiKeyRow, ApiModel, ApiVersion, ChangesPage, RolloutRow
from functions.decisions.rollout.events import Breached, Promoted, Resumed, VersionLoaded
from functions.decisions.rollout.lifecycle import Rollout, transition
from tests.decisions.rollout.rollouts import rollout


def row(it: Rollout) -> RolloutRow:
    return msgspec.convert(it, RolloutRow, from_attributes=True)


def api_model(name: str = "acme/api", *, deleted: bool = False) -> ApiModel:
    version = ApiVersion("v1", Digest("sha256:" + "1" * 64), "s3://b/x")
    return ApiModel(ModelId(name), "base", "default", (version,), {"stable": "v1"}, deleted)


def key(key_id: str = "ci", *, revoked: bool = False) -> ApiKeyRow:
    return ApiKeyRow(KeyId(key_id), "acme", "0" * 64, ("inference",), revoked=revoked)


def page(change: int, *rollouts: Rollout, **more: object) -> ChangesPage:
    return ChangesPage(change=change, lineage="a", rollouts=tuple(row(one) for one in rollouts), **more)  # type: ignore[arg-type]


def test_rows_are_known_once_the_last_page_is_read() -> None:
    first = fold_page(Book(), page(5, more=True, models=(api_model(),)))
    assert (first.is_known, first.rows.are_known) == (False, False)
    book = fold_page(first, page(9, keys=(key(),)))
    assert (book.is_known, book.change) == (True, 9)
    assert (list(book.models), list(book.keys)) == (["acme/api"], ["ci"])


def test_reported_deletions_remove_rows() -> None:
    book = fold_page(Book(), page(5, models=(api_model(),), keys=(key(),)))
    book = fold_page(book, page(6))
    assert (list(book.models), list(book.keys)) == (["acme/api"], ["ci"])
    book = fold_page(book, page(7, models=(api_model(deleted=True),), keys=(key(revoked=True),)))
    assert (book.models, book.keys) == ({}, {})


@pytest.mark.parametrize(
    ("later", "words"),
    [
        (ChangesPage(change=4, lineage="a"), "was at 5 before: a restored backup?"),
        (ChangesPage(change=9, lineage="b"), "another database"),
    ],
)
def test_registry_with_fewer_changes_is_not_trusted(later: ChangesPage, words: str) -> None:
    book = fold_page(Book(), page(5, models=(api_model(),)))
    with pytest.raises(Contradiction, match=words):
        fold_page(book, later)


def test_active_rollout_of_a_channel_wins_over_the_newest() -> None:
    old = rollout(VersionLoaded(), Breached("bad"), now_unix_s=100.0)
    new = rollout(VersionLoaded(), Promoted("ada"), end="v3", previous=old.id, now_unix_s=200.0)
    other = rollout(channel="next", now_unix_s=50.0)
    book = fold_page(Book(), page(5, new, old, other))
    assert {place: one.id for place, one in book.rows.latest.items()} == {
        ("acme/bot", "stable"): new.id,
        ("acme/bot", "next"): other.id,
    }
    again = transition(old, Resumed("ada"), 300.0)
    book = fold_page(book, page(6, again))
    assert book.rows.latest["acme/bot", "stable"] == again  # type: ignore[index]
    assert [one.id for one in book.active] == sorted([again.id, other.id])


def test_successor_is_newer_despite_clock_skew() -> None:
    old = rollout(VersionLoaded(), Promoted("ada"), now_unix_s=500.0)
    new = rollout(VersionLoaded(), Promoted("ada"), end="v3", previous=old.id, now_unix_s=100.0)
    assert fold_page(Book(), page(5, old, new)).rows.latest["acme/bot", "stable"].id == new.id  # type: ignore[index]


def test_irrelevant_rollouts_are_dropped() -> None:
    rows = [rollout(VersionLoaded(), Promoted("ada"), end=f"v{n + 2}", now_unix_s=float(n)) for n in range(50)]
    assert list(fold_page(Book(), page(60, *rows)).rollouts) == [rows[-1]]


def test_feed_does_not_undo_a_newer_answer() -> None:
    before = rollout()
    after = transition(before, VersionLoaded(), 5.0)
    book = with_rows(fold_page(Book(), page(5, before)), [after])
    assert list(fold_page(book, page(6, before)).rollouts) == [after]
    assert list(with_rows(book, [before]).rollouts) == [after]


def numbered(change: int, *rows: tuple[int, Rollout]) -> ChangesPage:
    told = tuple(msgspec.structs.replace(row(one), seq=seq) for seq, one in rows)
    return ChangesPage(change=change, lineage="a", rollouts=told)


def test_reread_orders_rollouts_by_succession_despite_clock_skew() -> None:
    """A registry whose clock was ahead created the first of three rollouts."""
    first = rollout(VersionLoaded(), Promoted("ada"), now_unix_s=1000.0)
    second = rollout(VersionLoaded(), Promoted("ada"), end="v3", previous=first.id, now_unix_s=500.0)
    third = rollout(VersionLoaded(), Breached("bad"), end="v4", previous=second.id, now_unix_s=510.0)
    live = Book()
    for seq, one in enumerate((first, second, third), start=1):
        live = fold_page(live, numbered(seq, (seq, one)))
    anew = fold_page(Book(), numbered(3, (3, third), (1, first), (2, second)))
    assert live.rows.latest == anew.rows.latest == {("acme/bot", "stable"): third}
    assert fold_page(Book(), page(3, first, second, third)).rows.latest == anew.rows.latest, "nor without its numbers"
    again = fold_page(decode(encode(anew)), numbered(4, (1, msgspec.structs.replace(first, lock_version=9))))
    assert again.rows.latest == {("acme/bot", "stable"): third}


def test_answer_ahead_of_the_feed_counts_as_newest_until_numbered() -> None:
    old = rollout(VersionLoaded(), Promoted("ada"), now_unix_s=1000.0)
    new = rollout(VersionLoaded(), Breached("bad"), end="v3", now_unix_s=1.0)
    later = rollout(VersionLoaded(), Breached("bad"), end="v4", now_unix_s=0.0)
    book = with_rows(fold_page(Book(), numbered(5, (5, old))), [new])
    assert book.rows.latest["acme/bot", "stable"] == new  # type: ignore[index]
    for following in (numbered(9, (7, new)), numbered(9, (8, later))):
        book = fold_page(book, following)
    assert book.rows.latest["acme/bot", "stable"] == later  # type: ignore[index]


def test_event_reads_only_its_own_channel() -> None:
    rows = [rollout(channel=f"c{number}") for number in range(3)]
    book = fold_page(Book(), page(5, *rows))
    after = with_rows(book, [transition(rows[1], VersionLoaded(), 5.0)])
    same = [after.channels[place] is book.channels[place] for place in book.channels]
    assert same == [True, False, True]


@given(st.permutations(range(4)))
def test_the_order_of_pages_rows_changes_nothing(order: list[int]) -> None:
    first = rollout(VersionLoaded(), Promoted("ada"), now_unix_s=1.0)
    second = rollout(VersionLoaded(), Breached("x"), end="v3", previous=first.id, now_unix_s=2.0)
    third = rollout(end="v4", previous=second.id, now_unix_s=3.0)
    rows = [first, second, third, rollout(channel="next")]
    assert fold_page(Book(), page(9, *(rows[n] for n in order))).rows == fold_page(Book(), page(9, *rows)).rows


def test_the_copy_on_the_disk_reads_back() -> None:
    book = fold_page(Book(), page(5, rollout(), models=(api_model(),), keys=(key(),)))
    assert decode(encode(book)) == book
    with pytest.raises(ValueError, match="not a book"):
        decode(b"{}x")
