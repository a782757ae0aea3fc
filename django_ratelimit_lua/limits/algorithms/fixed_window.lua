--[[
Fixed window: a count that starts again with every window.

record          limit, period, kind
                kind: 0 the window starts with its first hit, 1 with the clock's multiples of the period, 2 with a calendar;
                then, of a calendar, three boundaries in a row: the window of the caller's clock, and the end of the next one
state           clock, the first moment that the window stands for, its end, its start and its count
promise         at most `limit` units in one window, so at most twice that in any period
]]
local units, shadow, count_denied, max_wait, limit, period, kind = unpack('<ddddddd', record)
-- cost
local time, from, start, units_in, finish, opens, first, second, third = now, now, nil, 0, now, nil, nil, nil, nil
if kind == 2 then first, second, third = unpack('<ddd', record, 57) end

-- state
local most, clock = 9007199254740992, nil
if state then
  local is_ours = #state == 40
  if is_ours then
    clock, from, finish, start, units_in = unpack('<ddddd', state)
    is_ours = clock > -most and clock < most and from > -most and from < most and finish > -most and finish < most
      and start > -most and start < most and units_in > -most and units_in < most
      and clock % 1 + from % 1 + finish % 1 + start % 1 + units_in % 1 == 0
  end
  if not is_ours then return nil, key, state end
  -- Days and months are what the calendar says, whatever the clock was.
  if clock - now > 60000000 and not (third and clock < third) then
    local back = clock - now
    clock, from, finish, start = now, from - back, finish - back, start - back
    rcall('SET', key, pack('<ddddd', clock, from, finish, start, units_in), 'KEEPTTL')
  end
  if clock > time then time = clock end
end

-- When the window that holds this moment opened, and when it ends.
local ends
if kind == 1 then
  opens = time - time % period
  ends = opens + period
elseif kind == 2 then
  if time >= first and time < second then
    opens, ends = first, second
  elseif time >= second and time < third then
    opens, ends = second, third
  elseif start and start <= time and time < finish then
    -- The caller's clock is off: go on with the window of the state,
    opens, ends = start, finish
  else
    -- or move the caller's by whole periods, so that it holds this server's time.
    opens = first + math.floor((time - first) / period) * period
    ends = opens + period
  end
end
if start then
  -- Hits since this window opened belong to it, whatever windows were when they were counted.
  local is_live = start + period > time
  if opens then is_live = start >= opens or clock >= opens end
  if is_live then
    start = opens or start
    finish = ends or start + period
  else
    start, units_in = nil, 0
  end
end
if not start then finish = now end

if cost <= limit then
  moment = now
  if units_in + cost > limit then moment = finish end
end

-- verdict

if at then
  at = time
  if not start then
    start = opens or time
    finish, from = ends or start + period, start
  end
  units_in = math.min(units_in + units, most - 1)
  kept = pack('<ddddd', time, from, finish, start, units_in)
elseif op == 'refund' then
  -- Those of a hit go back to its window.
  local given_at, back = tonumber(ARGV[4]), math.min(units, units_in)
  if given_at and (given_at < from or given_at >= finish) then back = 0 end
  units_in = units_in - back
  if units_in == 0 then finish = now end
  kept = pack('<ddddd', time, from, finish, start or 0, units_in)
end

used = units_in
room = used < limit and limit - used or 0
idle_at = finish
