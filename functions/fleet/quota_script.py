"""Lua script that the bus runs for `quota_leases`: one call answers all requests of a gateway."""

SCRIPT = """
-- Share accounts' limits among gateways. A call marks its gateway as alive and answers its requests in their order.
--
-- KEYS  1 gateways (sorted set by last call)  2 time of the first call on this server  3 exists if other regions share
--       the limits  4 accounts in use (sorted set by last use), for those regions  5.. the requested accounts
-- ARGV  JSON {g: gateway, q: [[all_or_none, [[key, places_limit, places_held, places_wanted,
--                                         [[dimension, limit, burst, period_s, wanted, request], ...]], ...]], ...]}
--       amounts in millionths; a places_limit of -1 means no limit; a negative wanted is returned; a partial grant is
--       in whole requests: parts of a request, at each of many gateways, would be useless
-- returns [gateways, learning, [[granted, wait_us, [[places, [granted, ...], [left, ...]], ...]], ...]]
--
-- An account is a hash: <dimension> "level since", s:<gateway> "places until" of each gateway. With other regions also
-- u "start of counting", u:<dimension> "granted limit period", the sum of all grants here (`quota_regions`).
-- If the server's clock is set forwards, limits refill by that much once. If it is set back, nothing is used up by it,
-- and the places of a dead gateway expire in their usual time.
local PLACES_TTL_US, GATEWAY_TTL_US, LEARNING_US = 10000000, 10000000, 1000000
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local ask = cjson.decode(ARGV[1])
local function whole(number) return string.format('%.0f', number) end

redis.call('ZADD', KEYS[1], whole(now), ask.g)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', whole(now - GATEWAY_TTL_US))
redis.call('ZREMRANGEBYSCORE', KEYS[1], '(' .. whole(now), '+inf')  -- from before the clock was set back
redis.call('PEXPIRE', KEYS[1], 60000)
local born = redis.call('GET', KEYS[2])
if not born then
  born = whole(now)
  redis.call('SET', KEYS[2], born)
end
local regions = redis.call('EXISTS', KEYS[3]) == 1
local learning = now >= tonumber(born) and now - tonumber(born) < LEARNING_US

local accounts = {}

local function account_of(key)
  local found = accounts[key]
  if found then return found end
  local kept = redis.call('HGETALL', key)
  found = {kept = {}, levels = {}, places = {}, used = {}, others = 0, mine = 0, longest_s = 60}
  for i = 1, #kept, 2 do
    local field, value = kept[i], kept[i + 1]
    if string.sub(field, 1, 2) == 's:' then
      local places, expires = string.match(value, '^(%d+) (%d+)$')
      if tonumber(expires) > now + PLACES_TTL_US then  -- the clock was set back: cap the expiry
        redis.call('HSET', key, field, places .. ' ' .. whole(now + PLACES_TTL_US))
      end
      if tonumber(expires) <= now then
        redis.call('HDEL', key, field)
      elseif string.sub(field, 3) ~= ask.g then
        found.others = found.others + tonumber(places)
      else
        found.mine = tonumber(places)
      end
    else
      found.kept[field] = value
    end
  end
  accounts[key] = found
  return found
end

-- Return the current level; an unused limit is at 0. Gateways report what they spent to a new server.
local function level_of(account, rate)
  local name, limit, burst, period_s = tostring(rate[1]), rate[2], rate[3], rate[4]
  local level = account.levels[name]
  if level == nil then
    account.longest_s = math.max(account.longest_s, period_s)
    if account.kept[name] then
      local kept, since = string.match(account.kept[name], '^(%d+) (%d+)$')
      level = math.min(tonumber(kept), burst + limit * 1000000)
      local elapsed = math.max(0, now - tonumber(since))  -- a clock that was set back must not raise the level
      level = math.max(0, level - math.floor(elapsed * limit / period_s))
    else
      level = 0
    end
    account.levels[name] = level
  end
  return level
end

-- Return how long to wait until a group can be granted as a whole; 0 if it can be now.
local function wait_of(group)
  local longest = 0
  for _, request in ipairs(group) do
    local account = account_of(request[1])
    if request[2] >= 0 and request[4] > 0 and account.others + request[3] + request[4] > request[2] then
      longest = math.max(longest, 100000)
    end
    for _, rate in ipairs(request[5]) do
      local missing = math.min(rate[5], rate[3]) - (rate[3] - level_of(account, rate))
      if rate[5] > 0 and (missing > 0 or rate[3] <= 0) then
        longest = math.max(longest, rate[2] > 0 and math.ceil(missing * rate[4] / rate[2]) or rate[4] * 1000000)
      end
    end
  end
  return longest
end

local function grant(request, all)
  local account = account_of(request[1])
  local places, granted, left = request[3], {}, {}
  if request[2] >= 0 then
    local free = math.max(0, request[2] - account.others - places)
    places = math.max(0, places + math.min(request[4], free))
    if all then  -- urgent requests of one gateway may arrive out of order: the smaller one returns nothing
      places = math.max(places, account.places[ask.g] or account.mine)
    end
    account.places[ask.g] = places
  end
  for i, rate in ipairs(request[5]) do
    local level = level_of(account, rate)
    local free, wanted = rate[3] - level, rate[5]
    local amount = wanted
    if wanted > 0 and not all then
      amount = free <= 0 and 0 or math.floor(math.min(wanted, free / 2))
      if amount < wanted then amount = amount - amount % rate[6] end
    end
    level = math.max(0, level + amount)
    account.levels[tostring(rate[1])] = level
    if regions and amount ~= 0 then
      local before = account.used[tostring(rate[1])]
      account.used[tostring(rate[1])] = {(before and before[1] or 0) + amount, rate[2], rate[4]}
    end
    granted[i], left[i] = amount, rate[3] - level
  end
  return {places, granted, left}
end

local function nothing(request)
  local account = account_of(request[1])
  local granted, left = {}, {}
  for i, rate in ipairs(request[5]) do
    granted[i], left[i] = 0, rate[3] - level_of(account, rate)
  end
  return {request[3], granted, left}
end

local answers = {}
for i, entry in ipairs(ask.q) do
  local all, group = entry[1] == 1, entry[2]
  local wait = all and wait_of(group) or 0
  local given = {}
  for j, request in ipairs(group) do
    given[j] = wait == 0 and grant(request, all) or nothing(request)
  end
  answers[i] = {wait == 0 and 1 or 0, wait, given}
end

for key, account in pairs(accounts) do
  local fields = {}
  local function keep(name, first, second)
    fields[#fields + 1] = name
    fields[#fields + 1] = whole(first) .. ' ' .. whole(second)
  end
  for name, level in pairs(account.levels) do
    keep(name, level, now)
  end
  if regions then
    redis.call('ZADD', KEYS[4], whole(now), key)
    if not account.kept['u'] then
      fields[#fields + 1], fields[#fields + 2] = 'u', whole(now)
    end
    for name, used in pairs(account.used) do
      local total = tonumber(string.match(account.kept['u:' .. name] or '', '^(-?%d+) ') or '0') + used[1]
      fields[#fields + 1] = 'u:' .. name
      fields[#fields + 1] = whole(total) .. ' ' .. whole(used[2]) .. ' ' .. whole(used[3])
    end
  end
  for gateway, places in pairs(account.places) do
    if places > 0 then
      keep('s:' .. gateway, places, now + PLACES_TTL_US)
    else
      redis.call('HDEL', key, 's:' .. gateway)
    end
  end
  if #fields > 0 then
    redis.call('HSET', key, unpack(fields))
    redis.call('PEXPIRE', key, account.longest_s * 2000)
  end
end
return {redis.call('ZCARD', KEYS[1]), learning and 1 or 0, answers}
"""
