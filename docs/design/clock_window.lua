--[[
The units of one window after the other.

record   ..., capacity (the limit), period, offset (from a multiple of the period to the start of a window), in microseconds
state    the start of the window, and its units (7 bytes each)
promise  never more than `limit` units in one window
]]
local function check(key, record, now, cost)
  local most, period, offset = struct.unpack('<ddd', record, 41)
  local start, used = now - (now - offset) % period, 0
  local ends = start + period
  local state = redis.call('GET', key)
  if state then
    local saved_start, saved_used = struct.unpack('<I7I7', state)
    if saved_start == start then used = saved_used end
  end
  local accepts = now
  if cost > most then
    accepts = math.huge
  elseif used + cost > most then
    accepts = ends
  end
  return {
    accepts = accepts, leaves = accepts < math.huge and accepts or now, used = used, free_at = used > 0 and ends or now,
    start = start, ends = ends,
  }
end

local function take(key, record, now, cost, limit)
  limit.used, limit.free_at = limit.used + cost, limit.ends
  return struct.pack('<I7I7', limit.start, limit.used), now
end

local function refund(key, record, now, cost, limit)
  limit.used = math.max(limit.used - cost, 0)
  return struct.pack('<I7I7', limit.start, limit.used)
end
