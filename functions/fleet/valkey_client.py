"""Clients of the bus's Valkey: one server by its address, or the primary of several that Sentinel watches.

    valkey://bus.shoal.svc:6379/0                                           one server
    valkey+sentinel://bus-0:26379,bus-1:26379,bus-2:26379/shoal/0           the primary `shoal`, found by any of these

With sentinels, each new connection requests the primary's address from them and checks the server's role. If one
connection of a client is lost, times out, or a former primary refuses its write, the other connections are reopened
at their next use. Only one idle connection has to time out, not each of them.

Servers and sentinels share the password: a user's name, a space and the user's password (`bus_users`), or the default
user's password alone. A password file is read for each connection, so that a new password needs a restart of the bus
only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import valkey.asyncio as valkey
from valkey.asyncio.connection import Connection
from valkey.asyncio.sentinel import Sentinel
from valkey.credentials import CredentialProvider
from valkey.exceptions import ConnectionError as NoConnection
from valkey.exceptions import ReadOnlyError
from valkey.exceptions import TimeoutError as NoAnswer

_SENTINEL_SCHEME = "valkey+sentinel://"
_SENTINEL_PORT = 26379
_SENTINEL_TIMEOUT_S = 0.5  # then the next sentinel is tried


Password = str | Callable[[], str]  # a password, or a function that returns the current one for each connection


def password_in(file: Path | None) -> Password | None:
    """Return a function that reads the password file for each connection; None without a file. Raises OSError if it
    cannot be read now."""
    if file is None:
        return None
    file.read_text()
    return lambda: file.read_text().strip()


class BusUrlInvalid(ValueError):
    """The text is not an address of a bus; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Primary:
    """The primary of servers that sentinels watch."""

    sentinels: tuple[tuple[str, int], ...]
    name: str
    database: int


def client(url: str, *, password: Password | None = None, most: int | None = None, **options: Any) -> valkey.Valkey:
    """Return a Valkey client for the URL, which may name sentinels. `most` limits its connections; if all are in use, a
    call waits up to the answer timeout for one."""
    if password is not None:
        options["credential_provider"] = _Login(password)
    if url.startswith(_SENTINEL_SCHEME):
        primary = sentinels_of(url)
        options |= {"connection_class": _ToPrimary, "route": _Route(primary), "db": primary.database}
        made = valkey.ConnectionPool(**options)
    else:
        made = valkey.ConnectionPool.from_url(url, **options)
    if most is None:
        return valkey.Valkey.from_pool(made)
    wait_s = options["socket_timeout"]
    bounded = valkey.BlockingConnectionPool(most, wait_s, made.connection_class, **made.connection_kwargs)
    return valkey.Valkey.from_pool(bounded)


class _Login(CredentialProvider):
    def __init__(self, password: Password) -> None:
        self._password = password

    def get_credentials(self) -> tuple[str, ...]:  # type: ignore[override]
        try:
            password = self._password if isinstance(self._password, str) else self._password()
        except (OSError, UnicodeDecodeError) as error:  # the file is being replaced: retried as for any lost connection
            raise NoConnection(f"the bus's password cannot be read: {error}") from error
        user, _, secret = password.partition(" ")
        return (user, secret) if secret else (password,)


def sentinels_of(url: str) -> Primary:
    """Parse a `valkey+sentinel://` URL into its sentinels, primary and database; raises BusUrlInvalid."""
    hosts, _, path = url.removeprefix(_SENTINEL_SCHEME).partition("/")
    name, _, database = path.partition("/")
    if "@" in hosts or not name or not (database or "0").isdigit():
        raise BusUrlInvalid("expected valkey+sentinel://host:port,host:port/name/database, without a password")
    return Primary(tuple(_address(each) for each in hosts.split(",")), name, int(database or "0"))


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.strip().rpartition(":")
    if not colon:
        host, port = port, str(_SENTINEL_PORT)
    if not host or not port.isdigit():
        raise BusUrlInvalid(f"{text!r} is not the host:port of a sentinel")
    return host.strip("[]"), int(port)


@dataclass(slots=True)
class _Route:
    """State that the connections of one client share."""

    primary: Primary
    lost: int = 0  # number of lost connections: connections made before the last loss are not trusted


class _ToPrimary(Connection):
    """A connection to the server that is the primary when the connection is made."""

    def __init__(self, *, route: _Route, **options: Any) -> None:
        super().__init__(**options)
        self._route, self._made_at = route, route.lost

    async def connect(self) -> None:
        """Connect, or reconnect if another connection was lost since this one was made. The client also calls this
        before each use."""
        if self.is_connected and self._made_at != self._route.lost:
            await self.disconnect(nowait=True)
        await super().connect()  # type: ignore[no-untyped-call]

    async def _connect(self) -> None:
        self._made_at = self._route.lost
        self.host, self.port = await self._find()
        await super()._connect()  # type: ignore[no-untyped-call]

    async def on_connect(self) -> None:
        await super().on_connect()
        await self.send_command("ROLE", check_health=False)
        role = await self.read_response()
        if role[0] not in (b"master", "master"):
            raise NoConnection(f"{self.host}:{self.port} is not the primary any more")

    async def _find(self) -> tuple[str, int]:
        timeouts = {"socket_timeout": _SENTINEL_TIMEOUT_S, "socket_connect_timeout": _SENTINEL_TIMEOUT_S}
        sentinels = self._route.primary.sentinels
        # a sentinel that knows fewer others was away or has just started: its answer may be outdated
        others = len(sentinels) // 2
        about: dict[str, Any] = {**timeouts, "credential_provider": self.credential_provider}
        asked = Sentinel(sentinels, others, sentinel_kwargs=about)  # type: ignore[no-untyped-call]
        try:
            host, port = await asked.discover_master(self._route.primary.name)
        finally:
            for sentinel in asked.sentinels:
                await sentinel.aclose()
        return str(host), int(port)

    async def read_response(self, *arguments: Any, **options: Any) -> Any:
        try:
            return await super().read_response(*arguments, **options)
        except ReadOnlyError as error:
            self._route.lost += 1
            await self.disconnect()
            raise NoConnection("the former primary refuses writes") from error
        except (NoAnswer, NoConnection):
            self._route.lost += 1
            raise
