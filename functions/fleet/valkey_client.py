"""Clients of the bus's Valkey: one server by its address, or the primary of several that Sentinel watches.

    valkey://bus.shoal.svc:6379/0                                           one server
    valkey+sentinel://bus-0:26379,bus-1:26379,bus-2:26379/shoal/0           the primary named `shoal`, by any of these

With sentinels each new connection asks them where the primary is, and the server whether it is it. Where one
connection of a client is lost, gets no answer, or is refused a write by a former primary, its others are made anew at
their next use: of many that lie ready only one is waited for. The password is the same for servers and sentinels: a
user's name, a space and the user's (`bus_users`), or the default user's alone. From a file it is read anew for each
connection, so that a bus with another password needs no other restart than its own.
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
_SENTINEL_TIMEOUT_S = 0.5  # the next one is asked then


Password = str | Callable[[], str]  # or where it is to be had when a connection is made


def password_in(file: Path | None) -> Password | None:
    """Of a file, as it is whenever a connection is made. Raises OSError where it cannot be read now."""
    if file is None:
        return None
    file.read_text()
    return lambda: file.read_text().strip()


class BusUrlInvalid(ValueError):
    """Not an address of a bus; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Primary:
    """Of servers that sentinels watch."""

    sentinels: tuple[tuple[str, int], ...]
    name: str
    database: int


def client(url: str, *, password: Password | None = None, most: int | None = None, **options: Any) -> valkey.Valkey:
    """`most`: so many connections, and whoever finds none free waits for one as long as for an answer."""
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
        except (OSError, UnicodeDecodeError) as error:  # it is being replaced: tried again, as any lost connection
            raise NoConnection(f"the bus's password cannot be read: {error}") from error
        user, _, secret = password.partition(" ")
        return (user, secret) if secret else (password,)


def sentinels_of(url: str) -> Primary:
    """Raises BusUrlInvalid."""
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
        raise BusUrlInvalid(f"{text!r} is no host:port of a sentinel")
    return host.strip("[]"), int(port)


@dataclass(slots=True)
class _Route:
    """Shared by the connections of one client."""

    primary: Primary
    lost: int = 0  # times that a connection was lost: those from before it are not trusted


class _ToPrimary(Connection):
    """A connection to whoever is the primary when it is made."""

    def __init__(self, *, route: _Route, **options: Any) -> None:
        super().__init__(**options)
        self._route, self._made_at = route, route.lost

    async def connect(self) -> None:
        """Called before each use, too."""
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
        others = len(sentinels) // 2  # one that knows fewer was away, or has just begun: its word may be old
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
