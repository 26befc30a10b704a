"""Progress output: a spinner with elapsed seconds on a terminal, plain lines elsewhere (logs, pipes, CI)."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from functions.controller.local.prepare.steps import ReportedStep

PLAIN_LINE_EVERY_S = 10.0  # interval at which a long step writes a sign of life to a log


PIPE_WIDTH_COLUMNS = 200  # without a terminal rich assumes 80 columns, which would break names


def make_console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PIPE_WIDTH_COLUMNS)


def make_error_console() -> Console:
    """Return a console on standard error, for output that must not mix with the result on standard output."""
    console = Console(highlight=False, stderr=True)
    return console if console.is_terminal else Console(highlight=False, stderr=True, width=PIPE_WIDTH_COLUMNS)


class TerminalReporter:
    """Reports the steps of a long command on a console."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def step(self, title: str) -> Iterator[ReportedStep]:
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

    def print_line(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)  # lines to copy must not be wrapped


class _Spinner:
    """A spinner line: title, elapsed seconds and what is being done."""

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
        """Update the elapsed seconds, also while the step itself is blocked."""
        while not self._over.wait(0.2):
            width = max(20, self._status.console.width - len(self._title) - 16)
            doing = f"  [dim]{escape(self._doing[:width])}[/]" if self._doing else ""
            self._status.update(f"{escape(self._title)} [dim]{time.monotonic() - self._started_s:.0f} s[/]{doing}")


class _Lines:
    """A line at the start, then one at most every PLAIN_LINE_EVERY_S for a new activity."""

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
