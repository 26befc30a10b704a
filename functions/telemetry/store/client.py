"""Client of the trace store: ClickHouse's HTTP interface, served by ClickHouse itself or by `local_server`.

Statements include their settings (`SETTINGS …`), and values are sent separately, as `param_…`: input of a caller is
never part of the SQL. Calls block; use them from threads.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson

from functions.telemetry.store.schema import catching_up, first_statements, pending
from functions.telemetry.trace_shipping import PieceRefused, ReceiverAway

_CONNECT_S, _ANSWER_S = 5.0, 60.0
_BUSY_S = 30.0  # limit of a query at the store
_CODE = "x-clickhouse-exception-code"
# ClickHouse's error codes that only bad rows cause.
_BAD_ROWS = frozenset({6, 26, 27, 32, 33, 38, 41, 69, 72, 117, 130, 131, 349, 691})
_NOT_THERE = frozenset({16, 60, 81})  # column, table, database: it has been removed
_INTO = (
    "INSERT INTO shoal.requests SETTINGS insert_deduplicate=1, insert_deduplication_token='%s', "
    "deduplicate_blocks_in_dependent_materialized_views=1, input_format_skip_unknown_fields=1, "
    "input_format_json_read_objects_as_strings=1, max_insert_threads=1, async_insert=0 FORMAT JSONEachRow\n"
)


_COLUMNS = "SELECT name FROM system.columns WHERE database = 'shoal' AND table = 'requests'"
_DEFINITION = "SELECT create_table_query AS definition FROM system.tables WHERE database='shoal' AND name='requests'"


class StoreAway(Exception):
    """The store cannot be reached, or is unable to answer now."""


class TraceStoreRefused(Exception):
    """The store's error message; `code` is ClickHouse's number."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class StoreAddress:
    url: str
    user: str = "default"
    password: str = field(default="", repr=False)
    ca_file: Path | None = None


class TraceStore:
    def __init__(self, address: StoreAddress, *, answer_s: float = _ANSWER_S) -> None:
        self._client = httpx.Client(
            base_url=address.url,
            verify=ssl.create_default_context(cafile=str(address.ca_file)) if address.ca_file else True,
            headers={"X-ClickHouse-User": address.user, "X-ClickHouse-Key": address.password},
            timeout=httpx.Timeout(answer_s, connect=_CONNECT_S),
            trust_env=False,
        )

    def close(self) -> None:
        self._client.close()

    def select(self, sql: str, values: Mapping[str, str | int | float] | None = None) -> list[dict[str, Any]]:
        """Return the rows of a SELECT; raises StoreAway and TraceStoreRefused."""
        settings = f"SETTINGS max_execution_time={_BUSY_S:.0f}, output_format_json_quote_64bit_integers=0"
        answer = self._post(f"{sql}\n{settings}\nFORMAT JSONEachRow".encode(), values)
        return [orjson.loads(line) for line in answer.splitlines() if line]

    def execute(self, statement: str) -> None:
        """Run a statement without a result; raises StoreAway and TraceStoreRefused."""
        self._post(statement.encode())

    def insert(self, lines: bytes, token: str) -> None:
        """Insert rows as NDJSON; rows of a token that the table already has are ignored."""
        self._post((_INTO % token.replace("\\", "").replace("'", "")).encode() + lines)

    def migrate(self, retention_days: int) -> None:
        """Create or complete the tables, and set their retention; concurrent calls are harmless."""
        for statement in first_statements(retention_days):
            self.execute(statement)
        done = {row["number"] for row in self.select("SELECT number FROM shoal.migrations FINAL")}
        for statement in pending(done):
            self.execute(statement)
        present = {row["name"] for row in self.select(_COLUMNS)}
        found = self.select(_DEFINITION)
        for statement in catching_up(present, found[0]["definition"] if found else "", retention_days):
            self.execute(statement)

    def _post(self, body: bytes, values: Mapping[str, str | int | float] | None = None) -> bytes:
        params = {f"param_{name}": _escaped(value) for name, value in (values or {}).items()}
        try:
            answer = self._client.post("/", params=params, content=body)
        except httpx.HTTPError as error:
            raise StoreAway(f"{self._client.base_url}: {error or type(error).__name__}") from error
        if answer.status_code == 200:
            return answer.content
        said, code = answer.text.strip()[:500], answer.headers.get(_CODE, "0")
        if not code.isdigit() or int(code) == 0:
            raise StoreAway(f"{self._client.base_url}: {answer.status_code} {said}")
        raise TraceStoreRefused(int(code), said)


def _escaped(value: str | int | float) -> str:
    """Return the parameter as text, escaped as a TSV value, as which ClickHouse parses it."""
    text = str(value)
    for plain, escaped in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(plain, escaped)
    return text


class StoreReceiver:
    """The store as a receiver of trace files; it creates the tables before the first rows."""

    def __init__(self, store: TraceStore, retention_days: int) -> None:
        self._store = store
        self._retention_days = retention_days
        self._is_migrated = False

    def receive(self, lines: bytes, name: str) -> None:
        try:
            if not self._is_migrated:
                self._store.migrate(self._retention_days)
                self._is_migrated = True
            self._store.insert(lines, name)
        except StoreAway as error:
            raise ReceiverAway(str(error)) from error
        except TraceStoreRefused as error:
            self._is_migrated = self._is_migrated and error.code not in _NOT_THERE
            if error.code in _BAD_ROWS and self._is_migrated:
                raise PieceRefused(str(error)) from error
            raise ReceiverAway(str(error)) from error
