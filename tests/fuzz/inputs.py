"""Fuzz inputs: a few bytes that select options, then the data, in which a short mark encodes a long repetition.

    <mark> <n> <m> piece            `piece`, m bytes long, 2**n times

A fuzzer that adds bytes would need a megabyte to reach limits of depth and size; with the mark it needs four bytes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

Choice = TypeVar("Choice")
MARK = b"\x1a\x1a"
DEEP = ("\x1a\x1a\x0c\x01[", '\x1a\x1a\x0c\x05{"a":', "\x1a\x1a\x10\x01a", "\x1a\x1a\x0d\x02,1", "\x1a\x1a\x0c\x01\n")
_MAX_DOUBLINGS = 17
_MAX_BYTES = 512 * 1024


@dataclass(slots=True)
class Input:
    """Bytes that are read from the front. Bytes beyond the end read as zero, so that every input is valid."""

    data: bytes
    at: int = 0

    def byte(self) -> int:
        value = self.data[self.at] if self.at < len(self.data) else 0
        self.at += 1
        return value

    def one_of(self, choices: Sequence[Choice]) -> Choice:
        return choices[self.byte() % len(choices)]

    def rest(self) -> bytes:
        found = self.data[self.at :]
        self.at = len(self.data)
        return grown(found)


def grown(data: bytes) -> bytes:
    """Return the data with its repetitions expanded, up to the size limit."""
    first, *marked = data.split(MARK)
    out = bytearray(first)
    for part in marked:
        if len(part) > 2:
            doublings, length = min(part[0], _MAX_DOUBLINGS), part[1]
            piece = part[2 : 2 + length]
            out += (piece * (1 << doublings))[:_MAX_BYTES]
            out += part[2 + length :]
        if len(out) > _MAX_BYTES:
            break
    return bytes(out[:_MAX_BYTES])


def segments(data: bytes, size_bytes: int) -> Iterator[bytes]:
    """Yield `data` in segments as a network may deliver it, at most some thousands. Size 0 means one segment."""
    step = max(size_bytes, len(data) // 4096) or len(data) or 1
    if not size_bytes:
        step = len(data) or 1
    for start in range(0, len(data), step):
        yield data[start : start + step]
