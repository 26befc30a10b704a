"""Agent runs from OpenTelemetry spans: calls that depend on each other, in a closed loop.

A file is one JSON object with `spans`: trace_id, span_id, parent_span_id, start_time, end_time and attributes of the
GenAI conventions (messages, usage, session). Calls to models are replayed; the time between them is a pause.

    a call follows      its parent, if that is a call that had ended; else all calls that had ended when it began and
                        that no other such call followed (a fan-in waits for each of its branches)
    a pause             from the last of their ends to its start: tools, people, the agent's own work
    closed loop         a call is made when its predecessors are over in the simulation, plus the pause: a slower fleet
                        receives calls later, never more of them in parallel (`WorkloadRequest.then`)
    lengths             the recorded usage, or four bytes per token
    shared prompts      blocks of 16 tokens of the messages' text: a conversation's next call starts with the former
                        one's text. Each run is another conversation: runs share only a leading system message

Worked example (test_a_fan_in_waits_for_all_its_branches): two analyses start when the question is answered, and the
summary starts one second after the slower of them ends. `experiment` plays runs at a rate, `traces` all at the same
time.
"""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from heapq import heappop, heappush
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from functions.api.ids import TenantId
from functions.decisions.prefix.block_names import seed_of, text_blocks
from functions.simulator.workload.request import WorkloadRequest
from functions.simulator.workload.trace_text import TraceUnreadable

BLOCK_TOKENS = 16
_BYTES_PER_TOKEN = 4
_MOST_BYTES = 64 * 1024 * 1024  # per file
_MOST_CALLS = 2000  # per run: dependencies are found by comparing all pairs
_MOST_TOKENS = 10_000_000
_TENANT = TenantId("agents")


class _Span(msgspec.Struct):
    trace_id: str
    span_id: str
    start_time: datetime
    end_time: datetime
    parent_span_id: str | None = None
    attributes: dict[str, Any] = {}


class _File(msgspec.Struct):
    spans: list[_Span]


@dataclass(frozen=True, slots=True)
class Call:
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    common_blocks: int  # leading blocks that belong to the system message
    follows: tuple[int, ...]  # indexes of predecessors in the run
    pause_s: float  # after the last predecessor; without one, after the start of the run


@dataclass(frozen=True, slots=True)
class AgentRuns:
    """A `Workload` of `experiment`: runs from files, chosen and started at random."""

    runs: tuple[tuple[Call, ...], ...]
    requests: int  # approximate number of calls in total

    @property
    def block_tokens(self) -> int:
        return BLOCK_TOKENS

    def at_rate(self, requests_per_s: float, seed: int) -> Iterator[WorkloadRequest]:
        """Yield the first calls of runs; the mean is `requests_per_s` calls while the fleet keeps up."""
        rng = Random(seed)  # noqa: S311 - the same seed, the same runs
        calls = sum(len(run) for run in self.runs) / len(self.runs)
        number, at_s, count = 0, 0.0, 0
        begun: list[tuple[float, int, WorkloadRequest]] = []
        while count < self.requests:
            run = self.runs[rng.randrange(len(self.runs))]
            for first in _Run(run, number, at_s).first_calls():
                heappush(begun, (first.at_s, len(begun) + count, first))
            number += 1
            count += len(run)
            at_s += rng.expovariate(requests_per_s / calls)
            while begun and begun[0][0] <= at_s:
                yield heappop(begun)[2]
        while begun:
            yield heappop(begun)[2]


def read_runs(path: Path) -> tuple[tuple[Call, ...], ...]:
    """Return the runs of a file or of all files of a directory; raise TraceUnreadable."""
    runs = tuple(run for each in files(path) for run in _runs(each))
    if not runs:
        raise TraceUnreadable(f"{path}: no spans of calls to a model")
    return runs


def files(path: Path) -> list[Path]:
    """Return the trace files of a directory and its subdirectories, or the file itself."""
    return sorted([*path.rglob("*.json"), *path.rglob("*.json.gz")]) if path.is_dir() else [path]


def replayed(path: Path) -> Iterator[WorkloadRequest]:
    """Return the first calls of all runs, which start at the same time; answers trigger the next calls."""
    firsts = [first for number, run in enumerate(read_runs(path)) for first in _Run(run, number, 0.0).first_calls()]
    return iter(sorted(firsts, key=lambda first: first.at_s))


class _Run:
    """One run in progress."""

    __slots__ = ("_calls", "_followers", "_missing", "_session", "_start_s", "_variant")

    def __init__(self, calls: Sequence[Call], number: int, start_s: float) -> None:
        self._calls = calls
        self._session = f"agent-{number}"
        self._variant = seed_of(self._session, "")  # unique to the run: runs share only the system message's blocks
        self._start_s = start_s
        self._missing = [len(call.follows) for call in calls]
        self._followers: list[list[int]] = [[] for _ in calls]
        for index, call in enumerate(calls):
            for former in call.follows:
                self._followers[former].append(index)

    def first_calls(self) -> list[WorkloadRequest]:
        return [
            self._request_of(index, self._start_s + call.pause_s)
            for index, call in enumerate(self._calls)
            if not call.follows
        ]

    def _request_of(self, index: int, at_s: float) -> WorkloadRequest:
        call = self._calls[index]
        blocks = tuple(
            block if place < call.common_blocks else block ^ self._variant for place, block in enumerate(call.blocks)
        )
        request = WorkloadRequest(
            at_s, _TENANT, call.prompt_tokens, call.output_tokens, blocks=blocks, session=self._session
        )
        if self._followers[index]:
            request.then = partial(self._over, index)
        return request

    def _over(self, index: int, now_s: float) -> list[WorkloadRequest]:
        ready = []
        for follower in self._followers[index]:
            self._missing[follower] -= 1
            if not self._missing[follower]:
                ready.append(self._request_of(follower, now_s + self._calls[follower].pause_s))
        return ready


def _runs(path: Path) -> Iterator[tuple[Call, ...]]:
    spans = [span for span in _read(path).spans if "gen_ai.input.messages" in span.attributes]
    spans.sort(key=lambda span: (span.trace_id, span.start_time, span.span_id))
    for trace_id, found in groupby(spans, key=lambda span: span.trace_id):
        run = list(found)
        if len(run) > _MOST_CALLS:
            raise TraceUnreadable(f"{path}, trace {trace_id!r}: more than {_MOST_CALLS} calls")
        yield tuple(_call(path, span, run) for span in run)


def _read(path: Path) -> _File:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise TraceUnreadable(f"{path}: longer than {_MOST_BYTES} bytes")
        found = msgspec.json.decode(data, type=_File)
    except (msgspec.DecodeError, UnicodeDecodeError, OSError, EOFError, zlib.error) as error:
        raise TraceUnreadable(f"{path}: {error}") from error
    zones = {span.start_time.tzinfo is None for span in found.spans} | {
        span.end_time.tzinfo is None for span in found.spans
    }
    if len(zones) > 1 or any(span.end_time < span.start_time for span in found.spans):
        raise TraceUnreadable(f"{path}: a span ends before it begins, or some times have a zone and others none")
    return found


def _call(path: Path, span: _Span, run: Sequence[_Span]) -> Call:
    follows = _follows(span, run)
    since = max((run[index].end_time for index in follows), default=run[0].start_time)
    text, common_bytes = _text(path, span)
    prompt = _tokens(span, "prompt_tokens", "input_tokens") or len(text) // _BYTES_PER_TOKEN
    output = _tokens(span, "completion_tokens", "output_tokens") or _output_bytes(span) // _BYTES_PER_TOKEN
    block_bytes = BLOCK_TOKENS * _BYTES_PER_TOKEN
    blocks = text_blocks(text, seed_of("", str(span.attributes.get("gen_ai.request.model", ""))), block_bytes)
    return Call(
        max(1, prompt), max(1, output), blocks[: prompt // BLOCK_TOKENS], common_bytes // block_bytes,
        follows, (span.start_time - since).total_seconds(),
    )  # fmt: skip


def _follows(span: _Span, run: Sequence[_Span]) -> tuple[int, ...]:
    """Return the indexes of the calls that this one waited for."""
    ended = [(index, other) for index, other in enumerate(run) if other is not span and _before(other, span)]
    parent = tuple(index for index, other in ended if other.span_id == span.parent_span_id)
    if parent:
        return parent
    latest_start = max((other.start_time for _, other in ended), default=None)
    return tuple(index for index, other in ended if latest_start is not None and other.end_time > latest_start)


def _before(other: _Span, span: _Span) -> bool:
    return other.end_time <= span.start_time and other.start_time < span.start_time


def _tokens(span: _Span, *names: str) -> int:
    for name in names:
        found = span.attributes.get(f"gen_ai.usage.{name}")
        if isinstance(found, int) and 0 < found <= _MOST_TOKENS:
            return found
    return 0


def _output_bytes(span: _Span) -> int:
    found = span.attributes.get("gen_ai.output.text", span.attributes.get("gen_ai.output.messages", ""))
    return len(str(found).encode(errors="replace"))


def _text(path: Path, span: _Span) -> tuple[bytes, int]:
    """Return the messages' text and the number of its leading bytes that are a system message."""
    messages = span.attributes["gen_ai.input.messages"]
    try:
        said = msgspec.json.decode(messages, type=list[dict[str, Any]]) if isinstance(messages, str) else messages
        parts = [(str(role), str(content)) for role, content in map(itemgetter("role", "content"), said)]
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise TraceUnreadable(f"{path}, span {span.span_id!r}: messages without role and content") from error
    text, common_bytes = b"", 0
    for role, content in parts:
        if role == "system" and common_bytes == len(text):
            common_bytes = -1
        text += f"{role}\0{content}\0".encode(errors="replace")
        if common_bytes == -1:
            common_bytes = len(text)
    return text, common_bytes
