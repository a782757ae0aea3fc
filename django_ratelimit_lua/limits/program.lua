--[[
Decides the limits of one call, all or nothing.

KEYS[1..n]  the state of each limit, followed by that of its ban; last, if ARGV[2] is set, the hash of the published rules
ARGV[1]     operation: hit, peek, charge (take, whatever the verdict), refund, ban or unban
ARGV[2]     the revision of the rules that the caller uses; empty: it is not compared
ARGV[3]     the time in microseconds, and by how many milliseconds over a minute states are kept longer; empty: this server's time
ARGV[4]     of a hit: "partial", "debt" or empty; of a refund: the moment of the hit
ARGV[5..]   a record for each state: algorithm, cost, is_shadow, counts_denied, max_wait (negative: any), capacity, and the numbers that
            its file names; then the digests of subjects and the tags of their overrides; last a token, which ends the reply
returns     doubles: allowed, now, units granted, wait; for each state: used (of a bucket, with a fraction), retry_after (0: allowed,
            -1: never), reset_after, wait, counted_at (0: nothing was taken). Or "stale " and the revision. Times are microseconds
]]
local operation, mode, count, now, spare, algorithms = ARGV[1], ARGV[4], #KEYS, nil, 1, {}

-- algorithms

-- Returns the records of the call's subjects if one of them begins with another tag (16 bytes): their overrides have changed.
local function stale_overrides(first, subjects)
  local written = redis.call('HMGET', KEYS[#KEYS], unpack(ARGV, first, first + subjects - 1))
  written[subjects + 1] = ARGV[#ARGV]
  for i = 1, subjects do
    if string.sub(written[i] or '', 1, 16) ~= ARGV[first + subjects + i - 1] then return written end
  end
end

-- 1. Compare the revision.
if ARGV[2] ~= '' then
  local current = redis.call('HGET', KEYS[count], 'revision') or '0'
  if current ~= ARGV[2] then return 'stale ' .. current .. ARGV[#ARGV] end
  count = count - 1
  local stale = #ARGV > 5 + count and stale_overrides(5 + count, (#ARGV - 5 - count) / 2)
  if stale then return stale end
end

-- 2. Read the time. Redis expires keys by its own clock: if the caller's decides, states are kept for at least a minute.
if ARGV[3] == '' then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
else
  local moment, longer = string.match(ARGV[3], '(%d+) ?(%d*)')
  now, spare = tonumber(moment), 60000 + (tonumber(longer) or 0)
end

-- A partial hit takes the units that are left, at least one.
local units = nil
if mode == 'partial' then
  for i = 1, count do
    local algorithm, cost, is_shadow, _, _, capacity = struct.unpack('<dddddd', ARGV[4 + i])
    local limit = algorithms[algorithm].check(KEYS[i], ARGV[4 + i], now, 1)
    if is_shadow == 0 then units = math.max(math.min(units or cost, cost, capacity - math.ceil(limit.used)), 1) end
  end
end

-- 3. Check every limit, and take nothing. A cost of 0 gets the answer of a cost of 1.
local limits, allowed, leaves, is_banned, granted = {}, true, now, false, 0
for i = 1, count do
  local algorithm, cost, is_shadow = struct.unpack('<ddd', ARGV[4 + i])
  cost = units or cost
  local limit = algorithms[algorithm].check(KEYS[i], ARGV[4 + i], now, cost > 0 and cost or 1)
  if is_shadow == 0 then
    allowed = allowed and limit.accepts <= now
    is_banned = is_banned or limit.is_ban and limit.accepts > now
    if limit.leaves > leaves then leaves = limit.leaves end
  end
  limits[i] = limit
end
if operation == 'charge' then allowed, leaves = true, now end

-- 4. If all enforced limits allow it, take from all that fit; otherwise count the refusal. 5. Answer.
local answers = ''
for i = 1, count do
  local key, record, limit, state, counted_at = KEYS[i], ARGV[4 + i], limits[i], nil, 0
  local place, cost, _, counts_denied = struct.unpack('<dddd', record)
  local algorithm, fits = algorithms[place], limit.accepts <= now
  cost = units or cost
  local takes = operation == 'charge' or operation == 'hit' and allowed and fits
  local counts = operation == 'hit' and not takes and not is_banned and counts_denied == 1
  -- A refusal by the limit before it is an offence, unless it is banned already.
  if limit.is_ban then takes, counts = false, operation == 'hit' and not is_banned and fits and limits[i - 1].accepts > now end
  if cost > 0 and (takes or counts) then
    state, counted_at = algorithm.take(key, record, now, cost, limit, takes and leaves or now)
    if takes and cost > granted then granted = cost end
  elseif algorithm[operation] then
    state, counted_at = algorithm[operation](key, record, now, cost, limit, mode)
  end
  if state then redis.call('SET', key, state, 'PX', math.ceil((limit.free_at - now) / 1000) + spare) end
  if counts or operation ~= 'hit' and operation ~= 'peek' then
    limit = algorithm.check(key, record, now, math.max(cost, 1))
    fits = limit.accepts <= now
  end
  local retry_after = fits and 0 or limit.accepts < math.huge and limit.accepts - now or -1
  answers = answers .. struct.pack('<ddddd', limit.used, retry_after, limit.free_at - now, limit.leaves - now, counted_at or 0)
  if limit.is_ban then answers = answers .. struct.pack('<d', limit.times) end
end
return struct.pack('<dddd', allowed and 1 or 0, now, granted, leaves - now) .. answers .. ARGV[#ARGV]
