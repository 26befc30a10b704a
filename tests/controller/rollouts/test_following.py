"""The copy of the registry's rows: written to disk before anything acts on the news, and not once per event."""

import asyncio
from pathlib import Path

from functions.controller.rollouts.book import Book, decode, fold_page
from functions.controller.rollouts.client import RolloutClient
from functions.controller.rollouts.following import RowsFollower
from functions.decisions.rollout.events import VersionLoaded
from functions.decisions.rollout.lifecycle import transition
from tests.controller.rollouts.test_book import page
from tests.decisions.rollout.rollouts import rollout


async def no_registry() -> RolloutClient:
    raise OSError("nobody asks the registry here")


class Counted(RowsFollower):
    """Counts its copies."""

    copies = 0

    def _write_copy(self, book: Book) -> None:
        self.copies += 1
        super()._write_copy(book)


async def test_news_during_a_write_share_the_next_copy(tmp_path: Path) -> None:
    copy = tmp_path / "rows.json"
    news: list[set[str]] = []
    rows = Counted(no_registry, copy, lambda: news.append(loaded(copy)))
    begun = [rollout(channel=f"c{number}") for number in range(20)]
    rows.book = fold_page(Book(), page(5, *begun))
    await asyncio.gather(*(rows.add_rows(transition(row, VersionLoaded(), 1.0)) for row in begun))
    assert loaded(copy) == {row.id for row in begun}
    assert rows.copies == 2  # one for the first, and one for all that arrived meanwhile
    assert begun[0].id in news[0]
    assert news[1:] == [loaded(copy)] * 19


async def test_several_answers_are_one_copy(tmp_path: Path) -> None:
    rows = Counted(no_registry, tmp_path / "rows.json")
    rows.book = fold_page(Book(), page(5))
    await rows.add_rows(*(rollout(channel=f"c{number}") for number in range(20)))
    await rows.add_rows()
    assert (len(rows.book.active), rows.copies) == (20, 1)


def loaded(copy: Path) -> set[str]:
    return {row.id for row in decode(copy.read_bytes()).rollouts if row.loaded}
