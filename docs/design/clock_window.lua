--[[
The units of windows that begin half a period after each multiple of the period.

record   ..., capacity (the limit), period, offset: from a multiple of the period to the start of a window, in microseconds
state    the start of the window, and its units (7 bytes each)
promise  never more than `limit` units in one window
]]
local function pack_window(verdict)
  return struct.pack('<I7I7', verdict.start, verdict.used)
end

local function check(key, record, now, cost)
  local most, period, offset = struct.unpack('<ddd', record, 41)
  local start, used, state = now - (now - offset) % period, 0, redis.call('GET', key)
  if state then
    local old_start, old_used = struct.unpack('<I7I7', state)
    if old_start == start then used = old_used end
  end
  local ends, accepted_from = start + period, now
  if cost > most then
    accepted_from = math.huge
  elseif used + cost > most then
    accepted_from = ends
  end
  return {accepted_from = accepted_from, goes_at = accepted_from < math.huge and accepted_from or now, used = used, free_at = ends, start = start}
end

local function take(key, record, now, cost, verdict)
  verdict.used = verdict.used + cost
  return pack_window(verdict), now
end

local function refund(key, record, now, cost, verdict)
  verdict.used = math.max(verdict.used - cost, 0)
  return pack_window(verdict)
end
