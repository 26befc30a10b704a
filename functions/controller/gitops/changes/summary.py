"""Thousands of changes on one screen: how many of each sort, and the first few in full."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from functions.controller.gitops.changes.describe import Change

SHOWN = 20


@dataclass(frozen=True, slots=True)
class Summary:
    headline: str  # `1,002 changes: 1,000 tenants added, 2 models changed`
    first: tuple[str, ...]  # the words of the first changes
    more: int  # how many are not among them

    @property
    def lines(self) -> tuple[str, ...]:
        return (self.headline, *self.first, *([f"… and {self.more:,} more"] if self.more else []))


def summarize(changes: Sequence[Change], shown: int = SHOWN) -> Summary:
    """The headline counts all of them, in the order in which they come."""
    counts = Counter((change.kind, change.verb) for change in changes)
    sorts = ", ".join(f"{count:,} {_plural(kind, count)} {verb}" for (kind, verb), count in counts.items())
    headline = f"{len(changes):,} {_plural('change', len(changes))}: {sorts}" if changes else "no change"
    first = tuple(change.words for change in changes[:shown])
    return Summary(headline, first, len(changes) - len(first))


def _plural(word: str, count: int) -> str:
    if count == 1:
        return word
    return f"{word} policies" if word in ("routing", "admission", "autoscaling") else f"{word}s"
