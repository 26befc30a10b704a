"""A fleet's own request traces as a workload: the files that gateways write, or their rows as JSON lines.

Rows have time, tenant, model, lengths and the cached part of the prompt, but no text. So:

    requested model       the one that was requested, even if another one answered
    lengths               the engine's own count; if a request reached no engine, the tenant's mean of those that did
    a chat's next turn    starts with the former one's whole prompt and answer (equal `session_id`, and no shorter)
    any other prompt      starts with `cached_tokens` of the common text of the tenant's prompts for that model
    the rest              is not shared

Known errors: a shared prefix that was cached nowhere when its request came does not show, so hit ratios of requests
without a session are too low by what the recorded routing missed. An edited chat counts as one that grew. A client
that left early requests only what it had received. test_simulation_of_traces_matches_served_and_cached
bounds the difference to a recorded run.

Requests that a tenant's own limits rejected have no row. Rows are written when requests end, so all are held in
memory (about 400 bytes each) and sorted. `functions.telemetry.trace_row` has the columns.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

import msgspec

from functions.api.ids import TenantId
from functions.decisions.admission.ticket import BANDS
from functions.simulator.workload.request import WorkloadRequest
from functions.simulator.workload.trace_text import lines, refuse

BLOCK_TOKENS = 64
PATTERN = "requests-*.ndjson*"
_MOST_ROWS = 2_000_000
_MOST_TOKENS = 10_000_000
_MOST_CHATS = 100_000
_BANDS = {str(name): index for index, name in enumerate(BANDS)}
_NO_PROMPT_TOKENS, _NO_OUTPUT_TOKENS = 512.0, 128.0  # defaults if no request has a length


class _Row(msgspec.Struct, gc=False):
    """The fields of a row that are used; others are ignored."""

    ts: float
    request_id: str
    tenant_id: str
    model_id: str
    class_: str = msgspec.field(name="class")
    adapter_id: str = ""
    pool: str = ""
    session_id: str = ""
    degraded_from: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    decode_tokens: int = 0


def captured(path: Path, last_s: float | None = None) -> Iterator[WorkloadRequest]:
    """Yield the requests, or those of the last `last_s` seconds, by time from 0; raise TraceUnreadable."""
    found = sorted(_rows(path), key=attrgetter("ts", "request_id"))
    if last_s is not None and found:
        since_s = found[-1].ts - last_s
        found = [row for row in found if row.ts >= since_s]
    models, lengths, chats = _Models(found), _Lengths(found), _Beginnings()
    for row in found:
        adapter, pool = models.asked_for(row)
        prompt, output = lengths.of(row)
        yield WorkloadRequest(
            row.ts - found[0].ts, TenantId(row.tenant_id), prompt, output,
            band=_BANDS[row.class_], session=row.session_id or None, adapter=adapter, pool=pool,
            blocks=chats.blocks(row, adapter or pool or "", prompt, output),
        )  # fmt: skip


def files(path: Path) -> list[Path]:
    """Return the trace files of a directory, oldest first, or the file itself."""
    return sorted(path.glob(PATTERN)) if path.is_dir() else [path]


def _rows(path: Path) -> Iterator[_Row]:
    decoder = msgspec.json.Decoder(_Row)
    count = 0
    for each in files(path):
        broken: tuple[int, str] | None = None
        for number, line in lines(each):
            if broken is not None:  # only a last line may be broken, by a killed process
                refuse(each, *broken)
            try:
                row = decoder.decode(line)
            except msgspec.DecodeError as error:
                broken = (number, str(error))
                continue
            _check(row, each, number)
            count += 1
            if count > _MOST_ROWS:
                refuse(each, number, f"more than {_MOST_ROWS} requests: give a part of them")
            yield row
        if broken is not None and not count:
            refuse(each, *broken)


def _check(row: _Row, path: Path, number: int) -> None:
    tokens = (row.prompt_tokens or 0, row.cached_tokens or 0, row.completion_tokens or 0, row.decode_tokens)
    if row.class_ not in _BANDS:
        refuse(path, number, f"class {row.class_[:40]!r} is none of {', '.join(_BANDS)}")
    if not 0.0 <= row.ts <= 1e11 or not all(0 <= each <= _MOST_TOKENS for each in tokens):
        refuse(path, number, "a time or a number of tokens that cannot be")


class _Models:
    """Requested models, even of requests that reached no engine or were answered by another model."""

    def __init__(self, rows: Iterable[_Row]) -> None:
        self._known: dict[str, tuple[str | None, str | None]] = {}
        for row in rows:
            if not row.degraded_from and row.pool:
                self._known[row.model_id] = (row.adapter_id or None, row.pool)

    def asked_for(self, row: _Row) -> tuple[str | None, str | None]:
        """Return the adapter and the pool that the row's request named; None for each that is not known."""
        known = self._known.get(row.degraded_from or row.model_id)
        return known if known is not None else (row.adapter_id or None, row.pool or None)


@dataclass(slots=True)
class _Mean:
    total: int = 0
    count: int = 0

    def add(self, tokens: int) -> None:
        self.total += tokens
        self.count += 1


class _Lengths:
    """Tokens of each request; missing counts are replaced by the mean of the tenant, or else of all tenants."""

    def __init__(self, rows: Iterable[_Row]) -> None:
        self._prompts: dict[str, _Mean] = {}
        self._outputs: dict[str, _Mean] = {}
        for row in rows:
            for name in (row.tenant_id, ""):  # the empty name stands for all tenants
                if row.prompt_tokens is not None:
                    self._prompts.setdefault(name, _Mean()).add(row.prompt_tokens)
                if row.completion_tokens is not None:
                    self._outputs.setdefault(name, _Mean()).add(row.completion_tokens)

    def of(self, row: _Row) -> tuple[int, int]:
        prompt, output = row.prompt_tokens, row.completion_tokens
        if prompt is None:
            prompt = _guess(self._prompts, row.tenant_id, _NO_PROMPT_TOKENS)
        if output is None:
            output = row.decode_tokens or _guess(self._outputs, row.tenant_id, _NO_OUTPUT_TOKENS)
        return max(1, prompt), max(1, output)


def _guess(means: dict[str, _Mean], tenant: str, otherwise: float) -> int:
    mean = means.get(tenant) or means.get("")
    return round(mean.total / mean.count if mean is not None else otherwise)


@dataclass(slots=True)
class _Beginnings:
    """Block names: negative ones are common to a tenant's prompts, others belong to one request or chat."""

    _common: dict[tuple[str, str], int] = field(default_factory=dict)  # by tenant and model
    _chats: OrderedDict[tuple[str, str, str], tuple[int, tuple[int, ...]]] = field(default_factory=OrderedDict)
    _named: int = 0

    def blocks(self, row: _Row, model: str, prompt_tokens: int, output_tokens: int) -> tuple[int, ...]:
        count = prompt_tokens // BLOCK_TOKENS
        key = (row.tenant_id, model, row.session_id)
        former = self._chats.pop(key, None) if row.session_id else None
        if former is not None and prompt_tokens >= former[0]:
            begins = former[1][:count]
        else:
            common = self._common.setdefault((row.tenant_id, model), len(self._common))
            shared = min(count, (row.cached_tokens or 0) // BLOCK_TOKENS)
            begins = tuple(-1 - (common << 20) - index for index in range(shared))
        whole = begins + self._new(count - len(begins))
        if row.session_id:
            answered = (prompt_tokens + output_tokens) // BLOCK_TOKENS
            self._chats[key] = (prompt_tokens, whole + self._new(answered - count))
            if len(self._chats) > _MOST_CHATS:
                self._chats.popitem(last=False)
        return whole

    def _new(self, count: int) -> tuple[int, ...]:
        self._named += count
        return tuple(range(self._named - count, self._named))
