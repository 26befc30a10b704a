"""Recorded traces, streamed from their files; errors name the line.

    .jsonl      Mooncake: timestamp (ms), input_length, output_length, hash_ids of 512-token blocks
                (kvcache-ai/Mooncake, FAST'25, Apache-2.0)
    .csv        Azure: TIMESTAMP, ContextTokens, GeneratedTokens (Azure/AzurePublicDataset 2023, CC-BY 4.0)
    .ndjson     shoal's own request traces, also a directory of them (`captured`)
    .json       an agent's run as OpenTelemetry spans, also a directory of those (`agents`)

`.gz` may follow. Mooncake's conversation timestamps are multiples of about 3 s. Requests with the same timestamp are
spread evenly up to the next one, since clumps were not in the original traffic
(test_requests_at_one_timestamp_are_spread).
"""

from collections.abc import Iterator
from datetime import datetime
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path

import msgspec

from functions.api.ids import TenantId
from functions.simulator.workload import agents, captured
from functions.simulator.workload.request import WorkloadRequest
from functions.simulator.workload.trace_text import TraceUnreadable, lines, refuse, table

__all__ = ["MOONCAKE_BLOCK_TOKENS", "TraceUnreadable", "block_tokens_of", "read_trace"]

MOONCAKE_BLOCK_TOKENS = 512
_ANYBODY = TenantId("trace")
_LAST_STEP_S = 3.0
_MOST_TOKENS = 10_000_000
_MOST_AT_ONCE = 100_000
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class _Row(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def read_trace(path: Path) -> Iterator[WorkloadRequest]:
    """Yield the requests in order of time, starting at 0; raise TraceUnreadable."""
    kind = _kind(path)
    if kind == "captured":
        return captured.captured(path)
    if kind == "agents":
        return agents.replayed(path)
    return mooncake(path) if kind == "mooncake" else azure(path)


def block_tokens_of(path: Path) -> int:
    """Return the size in tokens of the blocks in which the trace names its prompts."""
    kind = _kind(path)
    if kind == "captured":
        return captured.BLOCK_TOKENS
    return agents.BLOCK_TOKENS if kind == "agents" else MOONCAKE_BLOCK_TOKENS


def _kind(path: Path) -> str:
    if path.is_dir():
        if captured.files(path):
            return "captured"
        if agents.files(path):
            return "agents"
        raise TraceUnreadable(f"{path}: a directory with neither request traces ({captured.PATTERN}) nor .json agents")
    name = path.name.removesuffix(".gz")
    for suffix, kind in ((".ndjson", "captured"), (".jsonl", "mooncake"), (".csv", "azure"), (".json", "agents")):
        if name.endswith(suffix):
            return kind
    raise TraceUnreadable(
        f"{path}: neither .jsonl (Mooncake), .csv (Azure), .ndjson (our own) nor .json (agents); .gz may follow"
    )


def mooncake(path: Path) -> Iterator[WorkloadRequest]:
    clumps = _clumps(path)
    former = next(clumps, None)
    if former is None:
        return
    start_ms = former[0]
    for clump in clumps:
        yield from _spread(former, start_ms, (clump[0] - former[0]) / 1000)
        former = clump
    yield from _spread(former, start_ms, _LAST_STEP_S)


def _clumps(path: Path) -> Iterator[tuple[float, list[_Row]]]:
    """Yield each timestamp in ms with its rows; raise TraceUnreadable if there are more than _MOST_AT_ONCE."""
    for stamp_ms, same in groupby(_mooncake_rows(path), key=attrgetter("timestamp")):
        rows = list(islice(same, _MOST_AT_ONCE + 1))
        if len(rows) > _MOST_AT_ONCE:
            raise TraceUnreadable(f"{path}: more than {_MOST_AT_ONCE} requests at {stamp_ms:g} ms")
        yield stamp_ms, rows


def _mooncake_rows(path: Path) -> Iterator[_Row]:
    decoder = msgspec.json.Decoder(_Row)
    last_ms = 0.0
    for number, line in lines(path):
        try:
            row = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise TraceUnreadable(f"{path}, line {number}: {error}") from error
        _check(path, number, row.input_length, row.output_length)
        if row.timestamp < last_ms:
            refuse(path, number, f"timestamp {row.timestamp:g} comes after {last_ms:g}: sort the file")
        last_ms = row.timestamp
        yield row


def azure(path: Path) -> Iterator[WorkloadRequest]:
    start: datetime | None = None
    last_s = 0.0
    for number, (stamp, context, generated) in table(path, _AZURE):
        try:
            when = datetime.fromisoformat(stamp[:26])
            prompt, output = int(context), int(generated)
        except ValueError as error:
            raise TraceUnreadable(f"{path}, line {number}: not {', '.join(_AZURE)}") from error
        _check(path, number, prompt, output)
        start = start or when
        at_s = (when - start).total_seconds()
        if at_s < last_s:
            refuse(path, number, f"{stamp} comes after a later one: sort the file")
        last_s = at_s
        yield WorkloadRequest(at_s, _ANYBODY, max(1, prompt), max(1, output))


def _check(path: Path, number: int, prompt_tokens: int, output_tokens: int) -> None:
    if not (0 <= prompt_tokens <= _MOST_TOKENS and 0 <= output_tokens <= _MOST_TOKENS):
        refuse(path, number, f"lengths below 0 or above {_MOST_TOKENS}")


def _spread(clump: tuple[float, list[_Row]], start_ms: float, step_s: float) -> Iterator[WorkloadRequest]:
    stamp_ms, rows = clump
    for index, row in enumerate(rows):
        at_s = (stamp_ms - start_ms) / 1000 + step_s * index / len(rows)
        # A partial last block is not shared.
        whole = row.hash_ids[: row.input_length // MOONCAKE_BLOCK_TOKENS]
        yield WorkloadRequest(at_s, _ANYBODY, max(1, row.input_length), max(1, row.output_length), blocks=whole)
