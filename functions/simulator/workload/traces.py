"""Recorded traces, streamed from their files; what cannot be read is said with its line.

    mooncake    JSON lines: timestamp (ms), input_length, output_length, hash_ids of 512-token blocks
                (kvcache-ai/Mooncake, FAST'25, Apache-2.0)
    azure       CSV: TIMESTAMP, ContextTokens, GeneratedTokens (Azure/AzurePublicDataset 2023, CC-BY 4.0)

Mooncake's conversation stamps are whole multiples of about 3 s: requests of one stamp are spread evenly up to the next,
since replayed as they are they make clumps that nobody sent (test_clumps_are_spread).
"""

import csv
import gzip
from collections.abc import Iterator
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import IO

import msgspec

from functions.api.ids import TenantId
from functions.simulator.workload.asked import Asked

MOONCAKE_BLOCK_TOKENS = 512
_ANYBODY = TenantId("trace")
_LAST_STEP_S = 3.0


class TraceUnreadable(ValueError):
    """The file is not what its name says; the message has the line."""


class _Row(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def read_trace(path: Path) -> Iterator[Asked]:
    """In order of time, beginning at 0."""
    name = path.name.removesuffix(".gz")
    if name.endswith(".jsonl"):
        return mooncake(path)
    if name.endswith(".csv"):
        return azure(path)
    raise TraceUnreadable(f"{path}: neither .jsonl (Mooncake) nor .csv (Azure); .gz may follow")


def mooncake(path: Path) -> Iterator[Asked]:
    decoder = msgspec.json.Decoder(_Row)
    with _open(path) as lines:
        rows = (_decoded(decoder, line, path, number) for number, line in enumerate(lines, 1) if line.strip())
        clumps = ((stamp, list(same)) for stamp, same in groupby(rows, key=lambda row: row.timestamp))
        former = next(clumps, None)
        if former is None:
            return
        start_ms = former[0]
        for clump in clumps:
            yield from _spread(former, start_ms, (clump[0] - former[0]) / 1000)
            former = clump
        yield from _spread(former, start_ms, _LAST_STEP_S)


def azure(path: Path) -> Iterator[Asked]:
    with _open(path) as lines:
        rows = csv.DictReader(lines)
        start: datetime | None = None
        for number, row in enumerate(rows, 2):
            try:
                when = datetime.fromisoformat(row["TIMESTAMP"][:26])
                prompt, output = int(row["ContextTokens"]), int(row["GeneratedTokens"])
            except (KeyError, TypeError, ValueError) as error:
                wanted = "TIMESTAMP, ContextTokens, GeneratedTokens"
                raise TraceUnreadable(f"{path}, line {number}: not {wanted}") from error
            start = start or when
            yield Asked((when - start).total_seconds(), _ANYBODY, max(1, prompt), max(1, output))


def _spread(clump: tuple[float, list[_Row]], start_ms: float, step_s: float) -> Iterator[Asked]:
    stamp_ms, rows = clump
    for index, row in enumerate(rows):
        at_s = (stamp_ms - start_ms) / 1000 + step_s * index / len(rows)
        # The last block may be a part of one: it is shared only where the whole is.
        whole = row.hash_ids[: row.input_length // MOONCAKE_BLOCK_TOKENS]
        yield Asked(at_s, _ANYBODY, max(1, row.input_length), max(1, row.output_length), blocks=whole)


def _decoded(decoder: "msgspec.json.Decoder[_Row]", line: str, path: Path, number: int) -> _Row:
    try:
        return decoder.decode(line)
    except msgspec.DecodeError as error:
        raise TraceUnreadable(f"{path}, line {number}: {error}") from error


def _open(path: Path) -> IO[str]:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")
