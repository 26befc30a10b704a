"""Result parts of a running batch, each with a head that lists its lines.

    part    head "\\n" result "\\n" result "\\n" …    head: a row of numbers a result

A part is written once, by the current owner of the batch. Two owners may have requested the same line, if the first
was killed or stalled before its part was visible. `Done` accepts a line's first result in the order of the parts'
names and drops later ones, so each line is in the output once
(test_each_line_is_in_the_output_once).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from functions.decisions.batch.record import Tally


@dataclass(frozen=True, slots=True)
class LineResult:
    ordinal: int
    is_success: bool
    text: bytes  # as written to the output, without a line end
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    @property
    def tally(self) -> Tally:
        return Tally(
            int(self.is_success),
            int(not self.is_success),
            self.prompt_tokens,
            self.cached_tokens,
            self.completion_tokens,
        )


class PartCorrupt(Exception):
    """The store holds something other than a part under a part's name."""


def encode(results: list[LineResult]) -> bytes:
    head = [
        [one.ordinal, int(one.is_success), one.prompt_tokens, one.cached_tokens, one.completion_tokens]
        for one in results
    ]
    return b"\n".join([json.dumps(head, separators=(",", ":")).encode(), *(one.text for one in results), b""])


def decode(part: bytes) -> list[LineResult]:
    head, *texts = part.split(b"\n")
    try:
        listed = [[int(value) for value in row] for row in json.loads(head)]
        return [
            LineResult(ordinal, bool(success), text, prompt, cached, completion)
            for (ordinal, success, prompt, cached, completion), text in zip(listed, texts[:-1], strict=True)
        ]
    except (ValueError, TypeError) as error:
        raise PartCorrupt(str(error)) from error


@dataclass(slots=True)
class Done:
    """Lines that have a durable result: one bit each."""

    tally: Tally = field(default_factory=Tally)
    _bits: bytearray = field(default_factory=bytearray)

    def __contains__(self, ordinal: int) -> bool:
        index = ordinal >> 3
        return index < len(self._bits) and bool(self._bits[index] & (1 << (ordinal & 7)))

    def add_new(self, results: list[LineResult]) -> Iterator[LineResult]:
        """Record results of lines as durable, count them, and yield those of lines that had none yet; others are
        ignored."""
        for result in results:
            if result.ordinal in self:
                continue
            index = result.ordinal >> 3
            if index >= len(self._bits):
                self._bits.extend(bytes(index + 1 - len(self._bits)))
            self._bits[index] |= 1 << (result.ordinal & 7)
            self.tally = self.tally.plus(result.tally)
            yield result
