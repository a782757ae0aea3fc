--[[
The debt of a bucket, in parts: a unit is `interval` parts, and each moment pays `tokens` parts. So nothing is ever rounded. A moment
is a microsecond, or a millisecond if the numbers in microseconds would exceed 2^53.

record  ..., capacity (the burst), tokens, interval, unit (the microseconds of a moment)
state   the debt in parts, and the moment at which it was that; then the burst, tokens and interval that it is counted by (7 bytes each)
]]
-- The debt now. A moment that lies ahead of now, because the clock was set back, becomes now.
local function read_debt(key, now, burst, tokens, interval, unit)
  local state = redis.call('GET', key)
  if not state then return 0 end
  local debt, at, old_burst, old_tokens, old_interval = struct.unpack('<I7I7I7I7I7', state)
  if burst ~= old_burst or tokens ~= old_tokens or interval ~= old_interval then
    -- Whole units stay owed, because a part of the old rate means nothing under the new one.
    debt = math.min(math.ceil(debt / old_interval), burst) * interval
    at = math.ceil(at / unit) * unit
  end
  local moment = now - now % unit
  if at > moment then
    redis.call('SET', key, struct.pack('<I7I7I7I7I7', debt, moment, burst, tokens, interval), 'KEEPTTL')
    return debt
  end
  debt = debt - (moment - at) / unit * tokens
  return debt > 0 and debt or 0
end

local function paid_at(now, debt, tokens, unit)
  return debt > 0 and now - now % unit + math.ceil(debt / tokens) * unit or now
end

-- The state of a debt, and what it means for the limit.
local function pack_debt(limit, record, now, debt)
  local burst, tokens, interval, unit = struct.unpack('<dddd', record, 41)
  limit.used = debt / interval
  limit.free_at = paid_at(now, debt, tokens, unit)
  return struct.pack('<I7I7I7I7I7', debt, now - now % unit, burst, tokens, interval)
end
