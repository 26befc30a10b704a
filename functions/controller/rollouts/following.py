"""Follow the registry's changes by long poll, and store a copy of the book on disk.

With the copy, a controller that starts while the registry is away or has lost its database continues with the last
known state: no channel flips and no API model vanishes because the registry cannot be reached. A registry that
contradicts the book is not followed, and `trouble` says why. Following resumes by itself once the registry is
consistent again. To accept its present state, end the controller and remove the copy.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from functions.controller.rollouts.book import Book, Contradiction, decode, encode, fold_page, with_rows
from functions.controller.rollouts.client import RolloutClient
from functions.controller.snapshot.registry_client import RegistryRefused, RegistryUnavailable, RowMoved
from functions.decisions.health.backoff import BackoffPolicy, delay_s
from functions.decisions.rollout.lifecycle import Rollout

WAIT_S = 25.0  # duration of a long poll; proxies cut at 30 or 60 s
SURE_S = 10.0  # limit of a fetch that a publication waits for, in case the registry hangs
RETRY = BackoffPolicy(base_s=0.3, cap_s=5.0)

_log = logging.getLogger(__name__)


async def read_book(client: RolloutClient) -> Book:
    """Read all of the registry's rows once and return them; raise Contradiction if its pages do not fit together."""
    book = Book()
    while not book.is_known:
        book = fold_page(book, await client.changes(book.change, 0.0))
    return book


class RowsFollower:
    """Owned by one event loop."""

    def __init__(
        self,
        client: Callable[[], Awaitable[RolloutClient]],
        copy: Path | None,
        on_change: Callable[[], None] = lambda: None,
        *,
        wait_s: float = WAIT_S,
    ) -> None:
        """`copy`: file of the copy, None for no copy. `on_change` is called at each change."""
        self.book = Book()
        self.trouble = "the registry was not queried yet"
        self.contradiction = ""  # reason why the registry is not followed
        self._client = client
        self._copy = copy
        self._on_change = on_change
        self._wait_s = wait_s
        self._failures = 0
        self._keeping = asyncio.Lock()  # one writer at a time, so that the newest book is on disk last
        self._taken = 0  # number of books so far
        self._kept = 0  # number of the book on disk

    def load(self) -> None:
        """Load the copy of the rows, if there is one; a malformed one is renamed to `….refused` and logged. Blocks."""
        if self._copy is None:
            return
        try:
            self.book = decode(self._copy.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            aside = self._copy.with_name(self._copy.name + ".refused")
            with contextlib.suppress(OSError):
                self._copy.replace(aside)
            _log.error("the copy of the registry's rows is set aside as %s: %s", aside.name, error)

    async def run(self) -> None:
        """Follow the changes until cancelled; after a failure, wait longer each time."""
        while True:
            if not await self.fetch_changes(self._wait_s if self.book.is_known and not self.trouble else 0.0):
                self._failures += 1
                await asyncio.sleep(delay_s(self._failures, RETRY))
            else:
                self._failures = 0

    async def fetch_changes(self, wait_s: float = 0.0) -> bool:
        """Read the changes until there are no more (wait up to `wait_s` for one); return True if that worked. Raises no
        temporary error: that becomes `trouble`."""
        try:
            client = await self._client()
            if self.contradiction:
                await self._reread_book(client)
            more = True
            while more:
                after = self.book.change
                page = await client.changes(after, wait_s)
                more = page.more
                if self.book.change == after:  # otherwise another fetch was faster and knows more
                    await self._replace_book(fold_page(self.book, page))
        except Contradiction as error:
            self._set_trouble(f"the registry's rows are not followed: {error}", contradiction=str(error))
            return False
        except (RegistryUnavailable, RegistryRefused, RowMoved, OSError) as error:
            self._set_trouble(str(error), contradiction=self.contradiction)
            return False
        self.trouble = self.contradiction = ""
        return True

    async def ensure_current(self) -> None:
        """Fetch the changes, for at most SURE_S, if the last fetch failed or there was none; `trouble` then says if it
        worked. The present book, from a copy or from before an outage, may show a rollout that was rolled back
        since."""
        if self.trouble:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SURE_S):
                    await self.fetch_changes()

    async def _reread_book(self, client: RolloutClient) -> None:
        """Read everything again after a contradiction; raise Contradiction if the registry has not caught up. A
        restored database continues the numbers of its backup. By the time it has caught up, some rows written since
        have numbers below those of the book."""
        fold_page(self.book, await client.changes(self.book.change, 0.0))
        await self._replace_book(await read_book(client))

    async def add_rows(self, *rows: Rollout) -> None:
        """Add answers about rollouts ahead of the feed; they are saved before a publication uses them."""
        if rows:
            await self._replace_book(with_rows(self.book, rows))

    async def _replace_book(self, book: Book) -> None:
        if book == self.book:
            return
        self.book = book
        if book.is_known:
            await self._write_newest()
            self._on_change()

    async def _write_newest(self) -> None:
        """Wait until the present book, or a later one, is on disk: callers that arrive during a write share the next
        one."""
        self._taken += 1
        wanted = self._taken
        async with self._keeping:
            if self._kept < wanted:
                newest = self._taken
                await asyncio.to_thread(self._write_copy, self.book)
                self._kept = newest

    def _write_copy(self, book: Book) -> None:
        """Write the copy of the rows durably, if there is a file for it; the old copy stays until the new one is
        complete. A failure is only logged."""
        if self._copy is None:
            return
        temporary = self._copy.with_name(self._copy.name + ".new")
        try:
            self._copy.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as file:
                file.write(encode(book))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._copy)
        except OSError as error:
            _log.error("the copy of the registry's rows cannot be written: %s", error)

    def _set_trouble(self, trouble: str, *, contradiction: str) -> None:
        if trouble != self.trouble:
            _log.warning("%s", trouble)
        self.trouble, self.contradiction = trouble, contradiction
