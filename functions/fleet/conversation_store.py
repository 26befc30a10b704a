"""Store of conversations between requests: Valkey, each conversation under its own expiring key.

Values are opaque here (the gateway seals them). A value is replaced only if it is still the one that was read. Of two
concurrent requests in one session, neither overwrites the other unnoticed: the later one gets False.

All conversations of one tenant are on one shelf with a limit in bytes. Beyond it, the least recently used ones are
deleted, so a tenant that opens sessions without end loses only its own.

    bytes on a shelf = sum over its values of (length + VALUE_COST_BYTES) <= shelf_bytes
    worked example (test_a_shelf_is_bounded): shelves of 10,000 bytes, values of 2,488 + 512: three of them fit

All tenants together may use at most half of the server's `maxmemory`, because a full bus accepts neither heartbeats
nor quotas. A tenant's shelf therefore grows only while it is no larger than what it leaves free of that half, so that
later tenants find room. Beyond that, the tenant's own oldest values are deleted. If it has none, the new value is not
stored.

    worked example (test_tenants_that_fill_their_shelves_leave_room_for_the_next): of 2 MiB that are free one tenant
    takes 1, the next a half of one, and so on

The store has its own connections: conversations and heartbeats never wait for each other.
"""

import hashlib
from math import ceil
from typing import Protocol

from valkey.exceptions import ValkeyError

from functions.fleet import valkey_client
from functions.fleet.bus import BusUnavailable

# Lua scripts of this store, which the bus runs: a value, and the shelf of its tenant.
#
# A shelf is a sorted set of names by expiry, and a hash of their sizes with the sum under `*`. Expired values leave
# the shelf when the next value is stored. If the shelf is over its limit, the value that expires first is deleted.
# All data on the server counts towards the memory limit of conversations, since heartbeats and quotas are there too.
#
#     free                  memory limit of conversations less the memory in use
#     a shelf grows         while it has at most as much as it leaves free: own <= (free + own) / 2
#     a shelf shrinks       by the excess: own <= free + own
#     nothing is stored     if even that would not suffice


_SHELF = """
local prefix = ARGV[1]
local name = ARGV[2]
local value_key, order_key, sizes_key = KEYS[1], KEYS[2], KEYS[3]

local function take_off(gone)
  local size = redis.call('HGET', sizes_key, gone)
  if not size then return 0 end
  redis.call('ZREM', order_key, gone)
  redis.call('HDEL', sizes_key, gone)
  return redis.call('HINCRBY', sizes_key, '*', -tonumber(size))
end
"""

REPLACE = (
    _SHELF
    + """
-- KEYS  1 the value  2 the shelf's order  3 the shelf's sizes
-- ARGV  1 prefix of values  2 name  3 sha1 of the expected value, '' for none  4 the new value
--       5 seconds to store it  6 limit of a shelf in bytes  7 cost of a value in bytes besides its length
--       8 percent of the server's memory up to which values may be stored
-- returns 1 if the value was replaced, 0 if another value is there, 2 if the server has no room
local there = redis.call('GET', value_key)
if (there and redis.sha1hex(there) or '') ~= ARGV[3] then return 0 end
local now = tonumber(redis.call('TIME')[1])
local ttl, most = tonumber(ARGV[5]), tonumber(ARGV[6])
local size = #ARGV[4] + tonumber(ARGV[7])
if redis.call('EXISTS', order_key) == 0 then redis.call('DEL', sizes_key) end
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', order_key, '-inf', now, 'LIMIT', 0, 100)) do take_off(gone) end
local own = tonumber(redis.call('HGET', sizes_key, '*') or '0')
local memory = redis.call('INFO', 'memory')
local used = tonumber(string.match(memory, '\\nused_memory:(%d+)'))
local bound = tonumber(string.match(memory, '\\nmaxmemory:(%d+)'))  -- 0: none
if bound > 0 then
  local free = bound * tonumber(ARGV[8]) / 100 - used + #ARGV[4]  -- the request buffer is freed after this call
  if size > own + free then return 2 end
  most = math.min(most, own + free, math.max(own, (own + free) / 2))
end
take_off(name)
redis.call('SET', value_key, ARGV[4], 'EX', ttl)
redis.call('ZADD', order_key, now + ttl, name)
redis.call('HSET', sizes_key, name, size)
local sum = redis.call('HINCRBY', sizes_key, '*', size)
while sum > most do
  local first = redis.call('ZRANGE', order_key, 0, 1)
  local gone = first[1] == name and first[2] or first[1]
  if gone == nil or gone == name then break end
  redis.call('DEL', prefix .. gone)
  sum = take_off(gone)
end
for _, key in ipairs({order_key, sizes_key}) do
  if redis.call('TTL', key) < ttl + 60 then redis.call('EXPIRE', key, ttl + 60) end
end
return 1
"""
)

DELETE = (
    _SHELF
    + """
-- KEYS and ARGV 1 and 2 as above; returns 1 if there was a value
take_off(name)
return redis.call('DEL', value_key)
"""
)


KEY_PREFIX = "shoal:conversation:"
SHELF_PREFIX = "shoal:conversations:"
VALUE_MAX_BYTES = 2 * 1024 * 1024
VALUE_COST_BYTES = 512  # key, expiry and shelf entry of one value
SHELF_BYTES = 32 * 1024 * 1024
MEMORY_PERCENT = 50  # share of the server's memory up to which conversations are stored
_NO_ROOM = 2
_TIMEOUT_S = 2.0
MAX_CONNECTIONS = 32  # per gateway; if all are in use, a call waits up to the answer timeout for one


class ConversationStore(Protocol):
    """Storage of conversations. Every method raises BusUnavailable if the result cannot be known or achieved."""

    async def read(self, name: str) -> bytes | None:
        """Return the value stored under a name; None if there is none."""

    async def replace(self, shelf: str, name: str, old: bytes | None, new: bytes, ttl_s: float) -> bool:
        """Store `new` on the tenant's `shelf` for `ttl_s` if `old` is still there (None: no value); return False if it
        is not. Raises BusUnavailable if there is no room."""

    async def delete(self, shelf: str, name: str) -> bool:
        """Delete the value from the tenant's `shelf`; return False if there was none. A request that has read it can no
        longer replace it."""

    async def close(self) -> None: ...


class ValkeyConversations:
    """Conversations in Valkey; `url` and `password` as for `ValkeyBus`."""

    def __init__(
        self, url: str, *, password: valkey_client.Password | None = None, shelf_bytes: int = SHELF_BYTES
    ) -> None:
        self._client = valkey_client.client(
            url,
            password=password,
            most=MAX_CONNECTIONS,
            socket_timeout=_TIMEOUT_S,
            socket_connect_timeout=_TIMEOUT_S,
        )
        self._replace = self._client.register_script(REPLACE)
        self._delete = self._client.register_script(DELETE)
        self._shelf_bytes = shelf_bytes

    async def read(self, name: str) -> bytes | None:
        try:
            value: bytes | None = await self._client.get(KEY_PREFIX + name)
        except (ValkeyError, OSError) as error:
            raise BusUnavailable(str(error)) from error
        return value if value is not None and len(value) <= VALUE_MAX_BYTES else None

    async def replace(self, shelf: str, name: str, old: bytes | None, new: bytes, ttl_s: float) -> bool:
        known = hashlib.sha1(old, usedforsecurity=False).hexdigest() if old is not None else ""
        bounds = [max(1, ceil(ttl_s)), self._shelf_bytes, VALUE_COST_BYTES, MEMORY_PERCENT]
        try:
            outcome = int(await self._replace(_keys(shelf, name), [KEY_PREFIX, name, known, new, *bounds]))
        except (ValkeyError, OSError) as error:
            raise BusUnavailable(str(error)) from error
        if outcome == _NO_ROOM:
            raise BusUnavailable("half of the bus's memory is in use: raise its maxmemory")
        return outcome == 1

    async def delete(self, shelf: str, name: str) -> bool:
        try:
            return bool(await self._delete(_keys(shelf, name), [KEY_PREFIX, name]))
        except (ValkeyError, OSError) as error:
            raise BusUnavailable(str(error)) from error

    async def close(self) -> None:
        await self._client.aclose()


def _keys(shelf: str, name: str) -> list[str]:
    return [KEY_PREFIX + name, f"{SHELF_PREFIX}{shelf}:order", f"{SHELF_PREFIX}{shelf}:sizes"]
