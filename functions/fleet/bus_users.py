"""Users of the bus's Valkey and their rights, as its access control lists.

    gateway     receives heartbeats, snapshot notices and other gateways' messages; stores quotas, pins, homes and
                conversations
    registry    receives heartbeats and gateways' counts; announces snapshots and nodes that are not ready; stores
                regions' quotas
    agent       sends heartbeats and prefixes; receives snapshot notices and requests for prefixes
    default     all rights: servers and sentinels among themselves, operators, and processes of version 0.1

Channel rights do not distinguish reading from writing, so the channels that a user may publish to are a separate list
(a selector). Each user's password is derived from the bus's password, and servers hold only its hash. The controller
does not use the bus.
"""

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from functions.fleet import heartbeat_gathering as gathering
from functions.fleet import valkey_bus as bus
from functions.fleet.conversation_store import KEY_PREFIX, SHELF_PREFIX

BusUser = Literal["gateway", "registry", "agent"]
_CONNECTING = (
    *("auth", "hello", "ping", "select", "role", "reset", "quit", "client|setinfo", "client|setname"),
    *("script|load", "script|exists", "evalsha", "eval", "time", "unsubscribe", "punsubscribe"),
)
_QUOTAS = "shoal:quota:*"
_HASHES = ("hget", "hmget", "hgetall", "hset", "hdel", "hincrby")
_SORTED_SETS = ("zadd", "zrem", "zrange", "zrangebyscore", "zremrangebyscore", "zcard")
_KEYS = ("get", "set", "del", "exists", "expire", "pexpire", "ttl", "pttl")
_KEPT = ("scan", "mget")  # to read the stored values when a process starts


@dataclass(frozen=True, slots=True)
class _Rights:
    commands: tuple[str, ...]
    writes: tuple[str, ...]  # key patterns, which may be read too
    reads: tuple[str, ...] = ()
    hears: tuple[str, ...] = ()  # channel patterns
    says: tuple[str, ...] = ()


_RIGHTS: dict[BusUser, _Rights] = {
    "gateway": _Rights(
        commands=(*_KEYS, *_KEPT, *_HASHES, *_SORTED_SETS, "info"),
        writes=(f"{bus.PINS_KEY_PREFIX}*", f"{bus.HOMES_KEY_PREFIX}*", _QUOTAS, f"{KEY_PREFIX}*", f"{SHELF_PREFIX}*"),
        reads=(f"{gathering.KEY_PREFIX}*",),
        hears=(
            *(gathering.GATHERED_CHANNEL, gathering.ALONE_PATTERN, bus.NOTICES_CHANNEL),
            *(bus.PINS_CHANNEL, bus.HOMES_CHANNEL, bus.PREFIXES_CHANNEL, bus.NODES_CHANNEL),
        ),
        says=(bus.PINS_CHANNEL, bus.HOMES_CHANNEL, bus.POOLS_CHANNEL, bus.STATS_CHANNEL, bus.PREFIX_ASKS_CHANNEL),
    ),
    "registry": _Rights(
        commands=(*_KEYS, *_KEPT, *_HASHES, *_SORTED_SETS),
        writes=(_QUOTAS,),
        reads=(f"{gathering.KEY_PREFIX}*",),
        hears=(
            *(gathering.GATHERED_CHANNEL, gathering.ALONE_PATTERN),
            *(bus.POOLS_CHANNEL, bus.STATS_CHANNEL, bus.NOTICES_CHANNEL),
        ),
        says=(bus.NOTICES_CHANNEL, bus.NODES_CHANNEL),
    ),
    "agent": _Rights(
        commands=("get", "set", "expire", "del", "lrange", "rpush", "pubsub|numsub"),
        writes=(f"{gathering.KEY_PREFIX}*", gathering.HELD_KEY, gathering.PACE_KEY),
        hears=(bus.NOTICES_CHANNEL, bus.PREFIX_ASKS_CHANNEL),
        says=(gathering.GATHERED_CHANNEL, gathering.ALONE_CHANNEL, bus.PREFIXES_CHANNEL),
    ),
}
USERS: tuple[BusUser, ...] = tuple(_RIGHTS)


def password_of(user: BusUser, bus_password: str) -> str:
    return hmac.new(bus_password.encode(), f"shoal: the bus for {user}".encode(), hashlib.sha256).hexdigest()


def login(user: BusUser, bus_password: str) -> str:
    """Return the content of the user's password file (`valkey_client`): the user's name, a space, and the password
    derived from `bus_password`."""
    return f"{user} {password_of(user, bus_password)}"


def server_users(bus_password: str) -> list[str]:
    """Return an ACL line for each user of the bus, for a server's configuration or its user file. The lines contain
    hashes only, which grant no access."""
    return [_line(user, bus_password, _rules(rights)) for user, rights in _RIGHTS.items()]


def _line(user: BusUser, bus_password: str, rules: str) -> str:
    digest = hashlib.sha256(password_of(user, bus_password).encode()).hexdigest()
    return f"user {user} reset on #{digest} {rules}"


def _rules(rights: _Rights) -> str:
    root = [*_prefixed("~", rights.writes), *_prefixed("%R~", rights.reads), *_prefixed("&", rights.hears)]
    commands = _prefixed("+", (*_CONNECTING, *rights.commands, "subscribe", "psubscribe"))
    return " ".join([*root, *commands, f"(+publish {' '.join(_prefixed('&', rights.says))})"])


def _prefixed(sign: str, names: Iterable[str]) -> list[str]:
    return [sign + name for name in names]
