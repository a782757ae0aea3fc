--[[
What a bucket owes, for both buckets. A debt is counted in parts, so that no payment is rounded: a unit of cost is `parts_per_unit` parts,
and each moment pays `parts_per_moment` (the rate in lowest terms). A moment is one microsecond, or one millisecond if twice the parts of
a full burst would exceed 2^53 otherwise.

record  ..., capacity (the burst), parts_per_moment, parts_per_unit, moment_us (the microseconds of a moment)
state   the debt, and the moment at which it was that; then burst, parts_per_moment and parts_per_unit (7 bytes each) and moment_us (2)
        by which it is counted
]]
-- The debt now. It is written only if the stored moment lies ahead of now, because the clock was set back: it is paid from now on.
local function read_debt(key, now, burst, parts_per_moment, parts_per_unit, moment_us)
  local state = redis.call('GET', key)
  if not state then return 0 end
  local debt, at, old_burst, old_per_moment, old_per_unit, old_moment_us = struct.unpack('<I7I7I7I7I7I2', state)
  local is_ahead = at > now
  if burst ~= old_burst or parts_per_moment ~= old_per_moment or parts_per_unit ~= old_per_unit or moment_us ~= old_moment_us then
    -- After an edit whole units stay owed, at most a full burst, and all time since is paid at the new rate.
    debt = math.min(math.ceil(debt / old_per_unit), burst) * parts_per_unit
    at = at - at % moment_us
  end
  if is_ahead then
    local moment = now - now % moment_us
    local moved = struct.pack('<I7I7I7I7I7I2', debt, moment, burst, parts_per_moment, parts_per_unit, moment_us)
    redis.call('SET', key, moved, 'KEEPTTL')
    return debt
  end
  local moments = (now - now % moment_us - at) / moment_us
  return math.max(debt - moments * parts_per_moment, 0)
end

local function paid_at(now, debt, parts_per_moment, moment_us)
  return debt > 0 and now - now % moment_us + math.ceil(debt / parts_per_moment) * moment_us or now
end

-- Returns the state of a debt, and brings the verdict up to date.
local function settle(verdict, record, now, debt)
  local burst, parts_per_moment, parts_per_unit, moment_us = struct.unpack('<dddd', record, 41)
  verdict.used = debt / parts_per_unit
  verdict.free_at = paid_at(now, debt, parts_per_moment, moment_us)
  return struct.pack('<I7I7I7I7I7I2', debt, now - now % moment_us, burst, parts_per_moment, parts_per_unit, moment_us)
end
