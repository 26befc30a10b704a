"""How a step tells people what it does; what that looks like (spinner, plain lines) is the command line's affair."""

from contextlib import AbstractContextManager
from typing import Protocol


class Step(Protocol):
    def update(self, what: str) -> None:
        """What it is doing now; may be called often."""

    def note(self, result: str) -> None:
        """What came of it, shown when the step ends."""


class Reporter(Protocol):
    def step(self, title: str) -> AbstractContextManager[Step]:
        """One step; ends with a tick, or with a cross where it raises."""

    def say(self, line: str) -> None:
        """One line outside any step."""


class CannotPrepare(Exception):
    """A step cannot be done; the message says what to do about it."""
