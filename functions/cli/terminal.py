"""Progress for people: a spinner with seconds on a terminal, plain lines elsewhere (logs, pipes, CI)."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from functions.controller.local.prepare.steps import Step

PLAIN_LINE_EVERY_S = 10.0  # a long step says in a log that it is still there


PIPE_WIDTH_COLUMNS = 200  # rich takes 80 where there is no terminal, and would cut names in two


def make_console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_WIDTH_COLUMNS)


def make_error_console() -> Console:
    """For what accompanies an answer, so that nothing that reads the answer has to skip it."""
    console = Console(highlight=False, stderr=True)
    return console if console.is_terminal else Console(highlight=False, stderr=True, width=PIPE_WIDTH_COLUMNS)


class TerminalReporter:
    """The steps of a long command."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def step(self, title: str) -> Iterator[Step]:
        started_s = time.monotonic()
        shown: _Spinner | _Lines = (
            _Spinner(self._console, title) if self._console.is_terminal else _Lines(self._console, title)
        )
        try:
            with shown:
                yield shown
        except BaseException:
            self._console.print(f"[red]✗[/] {escape(title)}  [dim]{time.monotonic() - started_s:.1f} s[/]")
            raise
        result = f"  [dim]{escape(shown.result)}[/]" if shown.result else ""
        self._console.print(f"[green]✓[/] {escape(title)}  [dim]{time.monotonic() - started_s:.1f} s[/]{result}")

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)  # lines to paste must stay whole


class _Spinner:
    """One line that moves: what is being done, for how long."""

    def __init__(self, console: Console, title: str) -> None:
        self.result = ""
        self._title = title
        self._doing = ""
        self._started_s = time.monotonic()
        self._status = Status(escape(title), console=console, spinner="dots")
        self._over = threading.Event()
        self._clock = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> "_Spinner":
        self._status.start()
        self._clock.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._clock.join()
        self._status.stop()

    def update(self, what: str) -> None:
        self._doing = what

    def note(self, result: str) -> None:
        self.result = result

    def _tick(self) -> None:
        """Seconds go on while the step itself waits for somebody else."""
        while not self._over.wait(0.2):
            width = max(20, self._status.console.width - len(self._title) - 16)
            doing = f"  [dim]{escape(self._doing[:width])}[/]" if self._doing else ""
            self._status.update(f"{escape(self._title)} [dim]{time.monotonic() - self._started_s:.0f} s[/]{doing}")


class _Lines:
    """A line at the start, and another now and then when something new is being done."""

    def __init__(self, console: Console, title: str) -> None:
        self.result = ""
        self._console = console
        self._title = title
        self._started_s = self._last_s = time.monotonic()

    def __enter__(self) -> "_Lines":
        self._console.print(escape(f"… {self._title}"))
        return self

    def __exit__(self, *_: object) -> None:
        return

    def update(self, what: str) -> None:
        now_s = time.monotonic()
        if now_s - self._last_s >= PLAIN_LINE_EVERY_S:
            self._last_s = now_s
            self._console.print(escape(f"  {self._title}: {what} ({now_s - self._started_s:.0f} s)"))

    def note(self, result: str) -> None:
        self.result = result
