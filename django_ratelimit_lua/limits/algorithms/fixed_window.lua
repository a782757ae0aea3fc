--[[
The units of one window after the other.

record   ..., capacity (the limit), period (microseconds), kind: a window begins with its first hit (0), at multiples of the period (1)
         or by a calendar (2); of a calendar also the start and the end of the caller's present window, and the end of the next
state    the moments of the first and the last hit of the window; its end; its units (7 bytes each)
promise  never more than `limit` units in one window
]]
-- When the window that holds now ends, and whether the hits of the state are in it. If the caller's clock is so far off that its
-- calendar does not reach now, the window of the state counts, or the caller's window, moved by whole periods.
local function find_window(record, now, first, last, ends)
  local period, kind, start, to, next_to = struct.unpack('<ddddd', record, 49)
  if kind == 0 and first + period > now then return first + period, true end
  if kind == 0 then return now + period, false end
  if kind == 1 then
    start = now - now % period
    return start + period, last >= start
  end
  if start <= now and now < to then return to, last >= start end
  if to <= now and now < next_to then return next_to, last >= to end
  if ends > now then return ends, true end
  return now - (now - start) % period + period, false
end

local function pack_window(verdict, now)
  verdict.free_at = verdict.used > 0 and verdict.ends or now
  return struct.pack('<I7I7I7I7', verdict.first, verdict.last, verdict.ends, verdict.used)
end

local function check(key, record, now, cost)
  local limit = struct.unpack('<d', record, 41)
  local state, first, last, ends, used = redis.call('GET', key), 0, 0, 0, 0
  if state then first, last, ends, used = struct.unpack('<I7I7I7I7', state) end
  -- Hits that lie ahead of now, because the clock was set back, become hits of now; more than a minute ahead, they are forgotten.
  if last > now then
    if last > now + 60000000 then first, last, ends, used = 0, 0, 0, 0 end
    first, last = math.min(first, now), math.min(last, now)
    redis.call('SET', key, struct.pack('<I7I7I7I7', first, last, ends, used), 'KEEPTTL')
  end
  local counts
  ends, counts = find_window(record, now, used > 0 and first or 0, last, ends)
  if used == 0 or not counts then first, used = now, 0 end
  local fits = used + cost <= limit
  return {
    accepted_from = fits and now or cost <= limit and ends or math.huge, goes_at = not fits and cost <= limit and ends or now,
    used = used, free_at = used > 0 and ends or now, first = first, last = last, ends = ends,
  }
end

local function take(key, record, now, cost, verdict)
  verdict.used, verdict.last = verdict.used + cost, now
  return pack_window(verdict, now), now
end

-- The units go back to the window of their hit, if that is the present one.
local function refund(key, record, now, cost, verdict, hit_at)
  if verdict.used == 0 or (tonumber(hit_at) or now) < verdict.first then return nil end
  verdict.used = math.max(verdict.used - cost, 0)
  return pack_window(verdict, now)
end
