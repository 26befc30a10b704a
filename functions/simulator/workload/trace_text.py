"""Lines of trace files, gzipped or not, each with a size limit; errors have the line number.

A trace may come from any source. An overlong line, bytes that are not text and a truncated gzip file are all
`TraceUnreadable`, and only one line is in memory. `traces` and `captured` read through this.
"""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn, cast

LINE_MAX_BYTES = 1024 * 1024  # the longest prompt of Mooncake's names 247 blocks in 2 KB


class TraceUnreadable(ValueError):
    """The file does not match its format; the message has the line."""


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each line that is not blank, stripped, with its number; raise TraceUnreadable."""
    number = 0
    try:
        with _opened(path) as file:
            while line := file.readline(LINE_MAX_BYTES + 1):
                number += 1
                if len(line) > LINE_MAX_BYTES:
                    refuse(path, number, f"longer than {LINE_MAX_BYTES} bytes")
                text = line.decode("utf-8").strip()
                if text:
                    yield number, text
    except UnicodeDecodeError as error:
        raise TraceUnreadable(f"{path}, line {number}: not UTF-8") from error
    except (OSError, EOFError, zlib.error) as error:
        raise TraceUnreadable(f"{path}, after line {number}: {error}") from error


def table(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of the given columns of a CSV without quotes, in that order; raise TraceUnreadable."""
    wanted: list[int] = []
    width = 0
    for number, line in lines(path):
        cells = line.split(",")
        if not wanted:
            missing = [column for column in columns if column not in cells]
            if missing:
                refuse(path, number, f"no column {', '.join(missing)}")
            wanted, width = [cells.index(column) for column in columns], len(cells)
            continue
        if len(cells) != width:
            refuse(path, number, f"{len(cells)} cells where the header has {width}")
        yield number, [cells[index] for index in wanted]


def refuse(path: Path, number: int, why: str) -> NoReturn:
    raise TraceUnreadable(f"{path}, line {number}: {why}")


def _opened(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")
