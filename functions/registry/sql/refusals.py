"""What the catalogue refuses, whoever asks: a kind that the edge turns into a status, and words that say what to do."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["missing", "conflict", "outdated", "precondition", "limit", "invalid"]


@dataclass(eq=False)
class Refused(Exception):
    """Nothing has changed. `code` is for programs, `message` for people; `subject` is what stands in the way."""

    kind: Kind
    code: str
    message: str
    subject: str | None = None

    def __str__(self) -> str:
        return self.message
