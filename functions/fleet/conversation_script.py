"""The scripts that the bus runs for `conversation_store`, in Lua: a value, and the shelf on which its tenant's lie.

A shelf is a sorted set of names by when they expire, and a hash of their sizes with the sum under `*`. What has expired
is taken off it with the next value; where it is over its bound, what would expire first goes. All that lies on the
server counts towards what conversations may take of its memory: heartbeats and quotas live there, too.

    free                  what they may take, less what is used
    a shelf grows         while it has at most as much as it leaves free: own <= (free + own) / 2
    a shelf shrinks       by what is used too much: own <= free + own
    nothing is kept       where even that would not do
"""

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
-- ARGV  1 prefix of values  2 name  3 sha1 of the value that must be there, '' for none  4 the new value
--       5 seconds to keep it  6 the most bytes of a shelf  7 bytes that a value costs besides its own
--       8 percent of the server's memory up to which values may be kept
-- gives 1 where it was replaced, 0 where another value is there, 2 where there is no room on the server
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
  local free = bound * tonumber(ARGV[8]) / 100 - used + #ARGV[4]  -- what it came in goes with this call
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
-- KEYS and ARGV 1 and 2 as above; gives 1 where there was a value
take_off(name)
return redis.call('DEL', value_key)
"""
)
