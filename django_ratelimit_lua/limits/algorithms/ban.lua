--[[
A ban: a client that is refused too often is refused for some time, whatever the limit allows. It is checked together with its limit.

record   ..., counts_denied (1: a refusal is an offence), max_wait (unused), capacity (infinite), after, window, then the lengths of
         the first ban, the second and so on, in microseconds; the last is that of each further one
state    the moment of the last change; when the ban ends; the moment of the first offence of the window (7 bytes each); the offences of
         the window, or those that led to the ban (0: made by hand); the number of bans (4 bytes each)
promise  after `after` refusals in a window that begins with the first of them, a client is banned once; attempts during a ban change
         nothing. The number of bans is forgotten when the last length has passed since the end of the last one
]]
local function length(record, times)
  local places = (#record - 64) / 8
  return (struct.unpack('<d', record, 57 + 8 * math.max(math.min(times, places), 1)))
end

local function pack_ban(limit, record, now)
  local free_at = limit.offences > 0 and limit.since + struct.unpack('<d', record, 57) or now
  if limit.times > 0 then free_at = math.max(free_at, limit.ends + length(record, math.huge)) end
  limit.used, limit.free_at = limit.offences, math.max(free_at, limit.ends, now)
  return struct.pack('<I7I7I7I4I4', now, limit.ends, limit.since, limit.offences, limit.times)
end

local function check(key, record, now)
  local state, at, ends, since, offences, times = redis.call('GET', key), 0, 0, 0, 0, 0
  if state then at, ends, since, offences, times = struct.unpack('<I7I7I7I4I4', state) end
  local ahead = at - now
  -- After the clock was set back, a ban ends as much earlier; by more than a minute, all is forgotten.
  if ahead > 0 then ends, since = math.max(ends - ahead, 0), math.min(since, now) end
  if ahead > 60000000 then ends, since, offences, times = 0, 0, 0, 0 end
  if ends <= now and since + struct.unpack('<d', record, 57) <= now then offences = 0 end
  if ends <= now and ends + length(record, math.huge) <= now then times = 0 end
  local limit = {is_ban = true, accepts = math.max(ends, now), leaves = now, ends = ends, since = since, offences = offences, times = times}
  local moved = pack_ban(limit, record, now)
  if ahead > 0 then redis.call('SET', key, moved, 'KEEPTTL') end
  return limit
end

local function begin(limit, record, now, microseconds)
  limit.ends, limit.since = math.min(now + (microseconds or length(record, limit.times)), 9007199254740991), 0
  return pack_ban(limit, record, now)
end

-- An offence, which may be the one that leads to a ban.
local function take(key, record, now, cost, limit)
  if limit.offences == 0 then limit.since = now end
  limit.offences = limit.offences + 1
  if limit.offences < struct.unpack('<d', record, 49) then return pack_ban(limit, record, now), 0 end
  limit.times = limit.times + 1
  return begin(limit, record, now), now
end

-- A ban by an operator. The cost is its length; 0: the length of the next ban, as which it counts.
local function ban(key, record, now, cost, limit)
  if cost == 0 then limit.times = limit.times + 1 end
  limit.offences = 0
  return begin(limit, record, now, cost > 0 and cost or nil), now
end

-- A cost of 1 also forgets the number of bans.
local function unban(key, record, now, cost, limit)
  limit.ends, limit.offences = math.min(limit.ends, now), 0
  if cost == 1 then limit.ends, limit.times = 0, 0 end
  return pack_ban(limit, record, now)
end
