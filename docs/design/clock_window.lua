--[[
The units of windows that begin half a period after each multiple of the period.

record   ..., capacity (the limit), period, offset: from a multiple of the period to the start of a window, in microseconds
state    the start of the window, and its units (7 bytes each)
promise  never more than `limit` units in one window
]]
local function pack_window(limit)
  return struct.pack('<I7I7', limit.start, limit.used)
end

local function check(key, record, now, cost)
  local most, period, offset = struct.unpack('<ddd', record, 41)
  local start, used, state = now - (now - offset) % period, 0, redis.call('GET', key)
  if state then
    local old_start, old_used = struct.unpack('<I7I7', state)
    if old_start == start then used = old_used end
  end
  local ends, accepts = start + period, now
  if cost > most then
    accepts = math.huge
  elseif used + cost > most then
    accepts = ends
  end
  return {accepts = accepts, leaves = accepts < math.huge and accepts or now, used = used, free_at = ends, start = start}
end

local function take(key, record, now, cost, limit)
  limit.used = limit.used + cost
  return pack_window(limit), now
end

local function refund(key, record, now, cost, limit)
  limit.used = math.max(limit.used - cost, 0)
  return pack_window(limit)
end
