"""chDB behind ClickHouse's HTTP interface: the trace store of one machine, in a separate process.

It supports only what `client` uses: POST / with a statement in the body (or its beginning in `query`), values as
`param_…`, user and password in headers or as HTTP Basic, `GET /ping`, errors with ClickHouse's code in a header.
Statements run one after the other, as chDB requires; if too many wait, further ones are rejected with 503.

chDB is ClickHouse as a library. Its data is in one directory, which one process may open. Acknowledged data
survives SIGKILL.
"""

import base64
import hmac
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

BODY_BYTES = 64 * 1024 * 1024
_WAITING = 16
_CODE = re.compile(r"Code: (\d+)\.")
_STATUS = {16: 404, 60: 404, 81: 404, 241: 500, 516: 401}


class ChdbSession(Protocol):
    """The part of chDB's session that is used here."""

    def query(self, sql: str, fmt: str = ..., *, params: dict[str, str] = ...) -> Any: ...

    def close(self) -> None: ...


class LocalStoreSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="SHOAL_TRACE_STORE_", frozen=True, extra="ignore")

    host: str = Field("127.0.0.1", description="Address that it listens on (plain HTTP).")
    port: int = Field(8451, ge=1, le=65535, description="Port of its ClickHouse HTTP interface.")
    directory: Path = Field(description="Folder of its data; only one process at a time may open it.")
    user: str = Field("shoal", description="User that may run statements.")
    password_file: Path = Field(description="File with the user's password.")
    statement_max_bytes: int = Field(
        1024 * 1024 * 1024, ge=64 * 1024 * 1024, description="Largest memory of one statement."
    )
    threads: int = Field(2, ge=1, le=64, description="Threads of one statement.")


class LocalStore:
    """ASGI application of the store. `ask` runs in a thread."""

    def __init__(self, ask: Callable[[bytes, dict[str, str]], bytes], user: str, password: str) -> None:
        self._ask = ask
        self._user = user
        self._password = password
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        request = Request(scope, receive)
        try:
            answer = await self._answer(request)
        except ClientDisconnect:
            return
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.method == "GET" and request.url.path == "/ping":
            return PlainTextResponse("Ok.\n")
        if not self._may(request):
            return _error(516, f"Code: 516. {self._user}: password is wrong. (AUTHENTICATION_FAILED)")
        given = dict(parse_qsl(request.url.query, keep_blank_values=True))
        body = bytearray(f"{given['query']}\n".encode() if "query" in given else b"")
        async for block in request.stream():
            body += block
            if len(body) > BODY_BYTES:
                return PlainTextResponse(f"over {BODY_BYTES} bytes\n", 413)
        if self._waiting >= _WAITING:
            return _error(202, "Code: 202. Too many simultaneous statements. (TOO_MANY_SIMULTANEOUS_QUERIES)", 503)
        values = {name.removeprefix("param_"): value for name, value in given.items() if name.startswith("param_")}
        self._waiting += 1
        try:
            return Response(await run_in_threadpool(self._ask, bytes(body), values), media_type="text/plain")
        # chDB has one exception type, which needs an import of chDB; its text is ClickHouse's
        except Exception as error:
            found = _CODE.search(str(error))
            return _error(int(found[1]) if found else 1000, str(error))
        finally:
            self._waiting -= 1

    def _may(self, request: Request) -> bool:
        user, password = request.headers.get("x-clickhouse-user", ""), request.headers.get("x-clickhouse-key", "")
        scheme, _, basic = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "basic":
            try:
                user, _, password = base64.b64decode(basic).decode().partition(":")
            except ValueError:
                return False
        return hmac.compare_digest(user.encode(), self._user.encode()) and hmac.compare_digest(
            password.encode(), self._password.encode()
        )


def _error(code: int, said: str, status: int | None = None) -> Response:
    status = status if status is not None else _STATUS.get(code, 500 if code in (1000, 243) else 400)
    return PlainTextResponse(said + "\n", status, {"X-ClickHouse-Exception-Code": str(code)})


def open_store(settings: LocalStoreSettings) -> tuple[ChdbSession, Callable[[bytes, dict[str, str]], bytes]]:
    """Open chDB on its directory; return its session and a function that runs a statement. The import takes a second
    and 200 MB."""
    from chdb import session as library

    settings.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    session: ChdbSession = library.Session(str(settings.directory))  # type: ignore[no-untyped-call]
    session.query(f"SET max_memory_usage = {settings.statement_max_bytes}, max_threads = {settings.threads}")

    def run_statement(statement: bytes, values: dict[str, str]) -> bytes:
        result: Any = session.query(statement.decode(errors="surrogateescape"), "TabSeparated", params=values)
        return bytes(result.bytes() or b"") if result is not None else b""

    return session, run_statement
