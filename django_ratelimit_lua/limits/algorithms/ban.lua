--[[
A ban: a client that is refused too often is refused altogether for some time. It is checked beside the limit that it belongs to.

record   ..., counts_denied (1: a refusal is an offence), max_wait (unused), capacity (infinite), after, window, then the lengths of
         the first ban, the second and so on, in microseconds; the last is that of each further one
state    the moment of the last change; when the ban ends; the moment of the first offence of the window (7 bytes each); the offences of
         the window, or those that led to the ban (0: made by hand); the number of bans (4 bytes each)
promise  after `after` refusals in a window that begins with the first of them, a client is banned once; attempts meanwhile change nothing.
         The number of bans is forgotten when the last length has passed since the end of the last one
]]
local function length(record, times)
  local places = (#record - 64) / 8
  return (struct.unpack('<d', record, 57 + 8 * math.max(math.min(times, places), 1)))
end

local function pack_ban(verdict, record, now)
  local free_at = verdict.offences > 0 and verdict.since + struct.unpack('<d', record, 57) or now
  if verdict.times > 0 then free_at = math.max(free_at, verdict.ends + length(record, math.huge)) end
  verdict.used, verdict.free_at = verdict.offences, math.max(free_at, verdict.ends, now)
  return struct.pack('<I7I7I7I4I4', now, verdict.ends, verdict.since, verdict.offences, verdict.times)
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
  local verdict = {
    is_ban = true, accepted_from = math.max(ends, now), goes_at = now, ends = ends, since = since, offences = offences, times = times,
  }
  local moved = pack_ban(verdict, record, now)
  if ahead > 0 then redis.call('SET', key, moved, 'KEEPTTL') end
  return verdict
end

local function begin(verdict, record, now, microseconds)
  verdict.ends, verdict.since = math.min(now + (microseconds or length(record, verdict.times)), 9007199254740991), 0
  return pack_ban(verdict, record, now)
end

-- An offence, which may be the one that leads to a ban.
local function take(key, record, now, cost, verdict)
  if verdict.offences == 0 then verdict.since = now end
  verdict.offences = verdict.offences + 1
  if verdict.offences < struct.unpack('<d', record, 49) then return pack_ban(verdict, record, now), 0 end
  verdict.times = verdict.times + 1
  return begin(verdict, record, now), now
end

-- By hand. The cost is the length; 0: as long as the next ban would be, which then counts as one.
local function ban(key, record, now, cost, verdict)
  if cost == 0 then verdict.times = verdict.times + 1 end
  verdict.offences = 0
  return begin(verdict, record, now, cost > 0 and cost or nil), now
end

-- A cost of 1 also forgets the number of bans.
local function unban(key, record, now, cost, verdict)
  verdict.ends, verdict.offences = math.min(verdict.ends, now), 0
  if cost == 1 then verdict.ends, verdict.times = 0, 0 end
  return pack_ban(verdict, record, now)
end
