"""Trace store queries for the console, and a request's row as it is shown: its parts and its routing reason.

The queries are those of the command line (`functions.telemetry.store.questions`). At most AT_ONCE run at a time, each
for up to ANSWER_S, so that a console cannot keep the store from inserting rows.
"""

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

import msgspec

from functions.registry.errors import ApiError
from functions.telemetry.store import questions
from functions.telemetry.store.client import StoreAway, TraceStore, TraceStoreRefused
from functions.telemetry.store.questions import Search
from functions.telemetry.trace_parts import parts
from functions.telemetry.trace_row import RowInvalid, TraceRow

ANSWER_S = 15.0
AT_ONCE = 4
_WAIT_S = 5.0
_NO_TABLE = frozenset({60, 81})
_NOT_CONFIGURED = (
    "no trace store is configured (SHOAL_REGISTRY_TRACE_STORE_URL); `shoal trace` reads the gateway's files instead"
)
Answer = TypeVar("Answer")


class Traces:
    """Client of the trace store. Owned by one event loop; the store's client blocks, so it runs in threads."""

    def __init__(self, store: TraceStore | None) -> None:
        self._store = store
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def search(self, asked: Search) -> list[dict[str, Any]]:
        """Return up to `asked.limit` traces as rows of a list. Raises ApiError if the trace store is missing or
        unavailable."""
        found = await self._query(lambda store: questions.search(store, asked))
        return [listed_row(row) for row in found]

    async def find(self, request_id: str) -> dict[str, Any] | None:
        row = await self._query(lambda store: questions.find(store, request_id))
        return whole_row(row) if row is not None else None

    async def close(self) -> None:
        if self._store is not None:
            await asyncio.to_thread(self._store.close)

    async def _query(self, question: Callable[[TraceStore], Answer]) -> Answer:
        store = self._store
        if store is None:
            raise ApiError(503, "no_trace_store", _NOT_CONFIGURED)
        try:
            async with asyncio.timeout(_WAIT_S):
                await self._turns.acquire()
        except TimeoutError as error:
            raise ApiError(503, "trace_store_busy", "too many queries wait for the trace store; try again") from error
        try:
            return await asyncio.to_thread(question, store)
        except StoreAway as error:
            raise ApiError(503, "trace_store_away", f"the trace store does not answer: {error}") from error
        except TraceStoreRefused as error:
            if error.code in _NO_TABLE:
                words = "the trace store has no traces yet: a gateway creates its tables with the first one"
                raise ApiError(503, "no_traces_yet", words) from error
            raise ApiError(503, "trace_store_refused", f"the trace store rejected the query: {error}") from error
        except RowInvalid as error:
            words = f"the trace store has rows that this release cannot read: {error}"
            raise ApiError(503, "trace_store_unknown", words) from error
        finally:
            self._turns.release()


_LISTED = (
    *("ts", "request_id", "tenant_id", "model_id", "version", "pool", "replica_id", "class", "status", "error"),
    *("finish_reason", "first_token_ms", "queue_ms", "total_ms", "prompt_tokens", "cached_tokens"),
    *("completion_tokens", "attempt_count", "route_reason", "degraded_from"),
)


def listed_row(row: TraceRow) -> dict[str, Any]:
    """Return those fields of a trace that a list shows."""
    plain = msgspec.to_builtins(row)
    return {name: plain[name] for name in _LISTED}


def whole_row(row: TraceRow) -> dict[str, Any]:
    return {**msgspec.to_builtins(row), "object": "trace", "parts": [asdict(part) for part in parts(row)]}
