"""Limits across several regions: grants of each region's bus are charged on the buses of the other regions.

    granted here    the quota script counts, for each limit of each account, all that it ever granted (`quota_script`)
    read            a registry of another region reads the accounts that were touched since its last read
    charge          it adds the new part to the levels on its own bus, and holds as many places as are held there

The other region counts as one more gateway there, so that limits are leased even if the region has one gateway. Like
a gateway it is forgotten, with its places, after 10 s of silence. What was spent meanwhile is not charged later: the
first answer after a silence only sets the starting count. Each total is charged once, however often it is read: the
bus stores it in the transaction that charges it. A new bus counts from zero, and its answers include its start time.

For n regions, with d between a grant and its charge elsewhere, any minute sees at most

    limit + n x burst + (n - 1) x limit x d / 60 s     test_all_regions_together_keep_the_bound, docs/decisions/0028

Worked example: two regions, 60,000 tokens a minute with bursts of a second, d = 1.5 s: 60,000 + 2,000 + 1,500.
"""

from typing import NamedTuple

import msgspec
from valkey.exceptions import ValkeyError

from functions.fleet import valkey_client
from functions.fleet.bus import BusUnavailable
from functions.fleet.quota_leases import ACCOUNT_KEY, BORN_KEY, GATEWAYS_KEY, REGIONS_KEY, USED_KEY

SILENT_S = 10.0  # as for a gateway
MAX_ACCOUNTS = 5_000  # in one answer: about half a megabyte
_COUNTED_S = 600  # a region without registries continues to count for this long
_FORGOTTEN_S = 600  # an account untouched for this long is forgotten: its buckets are empty

READ = """
-- KEYS 1 accounts in use  2 time of the first call on this server  3 exists if other regions share the limits
-- ARGV 1 touched after (us)  2 most accounts  3 seconds to continue counting  4 seconds to remember an account
-- returns [began, position for the next read, 1 if there are more,
--          [[account, counted since, places, [[dimension, granted, limit, period_s], ...]], ...]]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function whole(number) return string.format('%.0f', number) end
redis.call('SET', KEYS[3], '1', 'EX', ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', whole(now - tonumber(ARGV[4]) * 1000000))
local born = redis.call('GET', KEYS[2]) or '0'
local most = tonumber(ARGV[2])
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. ARGV[1], '+inf', 'WITHSCORES', 'LIMIT', 0, most)
local upto, more = now, 0
if #found == 2 * most then  -- one call may touch several accounts: read all of them again if some were cut off
  upto, more = tonumber(found[#found]) - 1, 1
end
local accounts = {}
for i = 1, #found, 2 do
  local key, stamp, places, rates = found[i], '', 0, {}
  local kept = redis.call('HGETALL', key)
  for j = 1, #kept, 2 do
    local field, value = kept[j], kept[j + 1]
    if field == 'u' then
      stamp = value
    elseif string.sub(field, 1, 2) == 'u:' then
      local total, limit, period = string.match(value, '^(-?%d+) (%d+) (%d+)$')
      rates[#rates + 1] = {tonumber(string.sub(field, 3)), total, limit, period}
    elseif string.sub(field, 1, 2) == 's:' and string.sub(field, 1, 9) ~= 's:region:' then
      local held, expires = string.match(value, '^(%d+) (%d+)$')
      if tonumber(expires) > now then places = places + tonumber(held) end
    end
  end
  if stamp ~= '' then accounts[#accounts + 1] = {key, stamp, places, rates} end
end
return {born, whole(upto), more, accounts}
"""

CHARGE = """
-- KEYS 1 gateways  2 start time of the other region's bus, if known
-- ARGV JSON {r: region, b: start time of its bus, w: true if all accounts are read, not only recent ones, l: true if
--       this is the last page, s: seconds of silence, a: [[account, counted since, places, [[dimension, granted, limit,
--       period_s], ...]], ...]}; whole numbers as text
-- returns {amount charged in all} or {}: the region was silent for too long, all accounts are needed, nothing changed
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local said = cjson.decode(ARGV[1])
local function whole(number) return string.format('%.0f', number) end
local silence_us = said.s * 1000000
local known = redis.call('GET', KEYS[2]) == said.b
local charged = 0
if not known and not said.w then return {} end
redis.call('ZADD', KEYS[1], whole(now), 'region:' .. said.r)
for _, account in ipairs(said.a) do
  local key, stamp, fields, longest_s = account[1], said.b .. '-' .. account[2], {}, 60
  for _, rate in ipairs(account[4]) do
    local name, total, limit, period_s = whole(rate[1]), tonumber(rate[2]), tonumber(rate[3]), tonumber(rate[4])
    local mark = 'p:' .. said.r .. ':' .. name
    local kept = redis.call('HMGET', key, mark, name)
    longest_s = math.max(longest_s, period_s)
    local new = 0
    if known then
      local since, before = string.match(kept[1] or '', '^(%S+) (-?%d+)$')
      new = since == stamp and total - tonumber(before) or total
    end
    local level, since = string.match(kept[2] or '', '^(%d+) (%d+)$')
    level = tonumber(level or '0')
    local elapsed = math.max(0, now - tonumber(since or whole(now)))
    level = math.max(0, level - math.floor(elapsed * limit / period_s))
    fields[#fields + 1], fields[#fields + 2] = mark, stamp .. ' ' .. whole(total)
    fields[#fields + 1], fields[#fields + 2] = name, whole(math.max(0, level + new)) .. ' ' .. whole(now)
    charged = charged + new
  end
  if account[3] > 0 then
    local held = whole(account[3]) .. ' ' .. whole(now + silence_us)
    fields[#fields + 1], fields[#fields + 2] = 's:region:' .. said.r, held
  else
    redis.call('HDEL', key, 's:region:' .. said.r)
  end
  if #fields > 0 then
    redis.call('HSET', key, unpack(fields))
    redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), longest_s * 4000))  -- longer than in the quota script
  end
end
if known or said.l then
  redis.call('SET', KEYS[2], said.b, 'PX', whole(silence_us / 1000))
end
return {whole(charged)}
"""


class UsedRate(NamedTuple):
    """Usage of one limit. Whole numbers are text, because millionths may exceed the precision of JSON's doubles."""

    dimension: int
    granted_micro: str
    limit: str
    period_s: str


class UsedAccount(NamedTuple):
    key: str
    counted_since: str
    places: int
    rates: tuple[UsedRate, ...]


class Used(msgspec.Struct, frozen=True):
    """Grants of a region's bus to the accounts that were touched recently."""

    began: str
    upto: str  # position for the next read
    more: bool
    accounts: tuple[UsedAccount, ...]


class RegionBus:
    """A region's own bus, as its registry uses it for the limits."""

    def __init__(self, url: str, *, password: valkey_client.Password | None = None, timeout_s: float = 5.0) -> None:
        self._client = valkey_client.client(
            url, password=password, socket_timeout=timeout_s, socket_connect_timeout=1.0
        )
        self._read = self._client.register_script(READ)
        self._charge = self._client.register_script(CHARGE)

    async def read(self, after: str = "0", most: int = MAX_ACCOUNTS) -> Used:
        """Return this region's grants to at most `most` accounts touched after `after`, and have the bus count grants
        from now on. BusUnavailable if the bus does not answer."""
        try:
            keys = [USED_KEY, BORN_KEY, REGIONS_KEY]
            said = await self._read(keys=keys, args=[after, most, _COUNTED_S, _FORGOTTEN_S])
            return _used(said)
        except (ValkeyError, OSError, msgspec.ValidationError) as error:
            raise BusUnavailable(str(error)) from error

    async def charge(self, region: str, used: Used, *, is_whole: bool) -> int | None:
        """Charge here what another region granted since its last charge; return the sum of the charged millionths of
        all limits.

        `is_whole`: `used` was read from the beginning. Return None, without any change, if that is required and it
        was not. Raises BusUnavailable.
        """
        ours = [account for account in used.accounts if account.key.startswith(ACCOUNT_KEY)]
        document = {"r": region, "b": used.began, "w": is_whole, "l": not used.more, "s": SILENT_S, "a": ours}
        try:
            keys = [GATEWAYS_KEY, f"shoal:quota:region:{region}"]
            charged = await self._charge(keys=keys, args=[msgspec.json.encode(document)])
            return int(charged[0]) if charged else None
        except (ValkeyError, OSError, ValueError) as error:
            raise BusUnavailable(str(error)) from error

    async def close(self) -> None:
        await self._client.aclose()


def _used(said: object) -> Used:
    began, upto, more, accounts = msgspec.convert(
        said, tuple[bytes, bytes, int, list[tuple[bytes, bytes, int, list[tuple[int, bytes, bytes, bytes]]]]]
    )
    return Used(
        began.decode(),
        upto.decode(),
        bool(more),
        tuple(
            UsedAccount(
                key.decode(),
                since.decode(),
                places,
                tuple(
                    UsedRate(index, granted.decode(), limit.decode(), period.decode())
                    for index, granted, limit, period in rates
                ),
            )
            for key, since, places, rates in accounts
        ),
    )
