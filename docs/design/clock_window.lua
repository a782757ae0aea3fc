--[[ clock_window.lua

record          limit, period, offset
                offset: from a multiple of the period to the start of a window, in microseconds
state           the start of the window, and the units that it counts
promise         at most `limit` units in one window
]]
local units, shadow, count_denied, max_wait, limit, period, offset = unpack('<ddddddd', record)
-- cost
local time, start, count = now, now - (now - offset) % period, 0
-- state
if state then
  if #state ~= 16 then return nil, key, state end -- Not ours: it is deleted, and the call starts again.
  local saved_start, saved_count = unpack('<dd', state)
  if saved_start >= start then
    start, count = saved_start, saved_count
  end
end
if cost <= limit then moment = count + cost <= limit and now or start + period end

-- verdict

if at then
  count = count + units
  kept = pack('<dd', start, count)
elseif op == 'refund' then
  count = count > units and count - units or 0
  kept = pack('<dd', start, count)
end
used, room, idle_at = count, count < limit and limit - count or 0, count > 0 and start + period or now
