--[[
Fixed window: a count that starts again with every window.

With units reserved ahead there are several windows in use, and the next hit goes by the last. The others only matter when
units are given back; of more than sixteen, the first two that are still to come are counted as one.

record          limit, period, kind
                kind: 0 the window starts with its first hit, 1 with the clock's multiples of the period, 2 with a calendar;
                then, of a calendar, four boundaries in a row around now; more: of a calendar, where calls may wait: 1 if
                the calendar goes on for longer than it is told here (else 0), then further boundaries
state           clock, the first moment that the first window stands for, the end of the last window, then for each window in
                use its start and its count, oldest first
promise         at most `limit` units in one window, so at most twice that in any period
]]
local units, shadow, count_denied, max_wait, limit, period, kind = unpack('<ddddddd', record)
-- cost
local align, time, from, start, units_in, earlier, last_end = kind == 1 and period or 1, now, nil, nil, 0, '', 0

-- When the window that holds a moment ends, and when it opened. Of a moment that is further ahead than the boundaries, it
-- ends where the next one in use starts, or when the state says.
local calendar, last_boundary
if kind == 2 then
  local boundaries = {}
  for offset = 57, 81, 8 do boundaries[#boundaries + 1] = unpack('<d', record, offset) end
  for offset = 97, #record, 8 do boundaries[#boundaries + 1] = unpack('<d', record, offset) end
  -- The caller's clock is days off: move its calendar by whole periods, so that it surrounds this server's time.
  local is_off = now < boundaries[1] or now >= boundaries[4]
  local shift = is_off and math.floor((now - boundaries[2]) / period) * period or 0
  for i = 1, #boundaries do boundaries[i] = boundaries[i] + shift end
  last_boundary = boundaries[4]
  if #record > 88 and unpack('<d', record, 89) == 1 then known_until = boundaries[#boundaries] end
  calendar = function(moment, next_start)
    if moment < boundaries[1] then return boundaries[1], boundaries[1] - period end
    for place = 2, #boundaries do
      if moment < boundaries[place] then return boundaries[place], boundaries[place - 1] end
    end
    return next_start or last_end > moment and last_end or moment + period, boundaries[#boundaries]
  end
end

-- state
local most = 9007199254740992
if state then
  local length, clock, is_ours = #state, nil, false
  if length >= 40 and length % 16 == 8 then
    clock, from, last_end, start, units_in = unpack('<ddddd', state)
    is_ours = clock > -most and clock < most and from > -most and from < most and last_end > -most and last_end < most
      and start > -most and start < most and units_in > -most and units_in < most
      and clock % 1 + from % 1 + last_end % 1 + start % 1 + units_in % 1 == 0
  end
  -- Days and months are what the calendar says, whatever the clock was.
  if is_ours and clock - now > 60000000 and not (calendar and clock < last_boundary) then
    local moved = {}
    for place = 1, length / 8 do
      local number = unpack('<d', state, 8 * place - 7)
      moved[place] = pack('<d', (place <= 3 or place % 2 == 0) and number - clock + now or number)
    end
    state = table.concat(moved)
    rcall('SET', key, state, 'KEEPTTL')
    clock, from, last_end, start, units_in = unpack('<ddddd', state)
  end
  if not is_ours then return nil, key, state end
  if clock > time then time = clock end
  local live, opens, _ = false, kind == 1 and time - time % period or nil, nil
  if calendar then _, opens = calendar(time) end
  for offset = 41, length + 1, 16 do
    local next_start, next_units
    if offset < length then
      next_start, next_units = unpack('<dd', state, offset)
      is_ours = next_start > -most and next_start < most and next_units > -most and next_units < most
        and next_start % 1 + next_units % 1 == 0
      if not is_ours then return nil, key, state end
    end
    -- Hits since this window opened belong to it, whatever windows were when they were counted.
    if opens and not live and start <= time
        and (start >= opens or clock >= opens and not (next_start and next_start <= clock)) then
      start = opens
    end
    local finish = calendar and calendar(start, next_start) or start - start % align + period
    if next_start and next_start < finish then
      -- One window, after an edit; and for good, or it would end before who was refused was told it would.
      start, units_in = next_start, math.min(units_in + next_units, most - 1)
    else
      live = live or start > time or start >= (opens or time - period + 1)
      if not live then from = finish end
      if next_start then
        if live then earlier = earlier .. pack('<dd', start, units_in) end
        start, units_in = next_start, next_units
      elseif not live then
        start, units_in = nil, 0
      end
    end
  end
end
if not start then last_end = 0 end
if known_until then
  -- Of a moment for which the calendar is not told far enough: when it will be told of one window more.
  known_at = calendar(time)
  if time >= known_until then known_until = nil end
end

local finish = start and (calendar and calendar(start) or start - start % align + period) or now
if cost <= limit then
  moment = now
  if start and units_in + cost > limit then
    moment = finish
    if known_until and moment >= known_until then accepts = known_at end
  elseif start and start > time then
    moment = start
  end
end

-- verdict

if at then
  if at < time then at = time end
  if start and at < finish then
    units_in = units_in + units
    if at < start then at = start end
  else
    if start then earlier = earlier .. pack('<dd', start, units_in) end
    local _
    start, units_in, last_end = at - at % align, units, 0
    if calendar then _, start = calendar(at) end
    finish = calendar and calendar(start) or start + period
    if earlier == '' then from = start end
    if #earlier > 255 then
      local place = unpack('<d', earlier) > time and 1 or 17
      local _, first, second_start, second = unpack('<dddd', earlier, place)
      earlier = string.sub(earlier, 1, place - 1) .. pack('<dd', second_start, math.min(first + second, most - 1))
        .. string.sub(earlier, place + 32)
    end
  end
  if units_in >= most then units_in = most - 1 end
  kept = earlier == '' and pack('<ddddd', time, from or time, finish, start, units_in)
    or pack('<ddd', time, from or time, finish) .. earlier .. pack('<dd', start, units_in)
elseif op == 'refund' then
  -- Those of a hit go back to its window; else the latest go back first.
  local given_at, left, starts, counts, size = tonumber(ARGV[4]), units, {}, {}, #earlier / 16
  for place = 1, size do starts[place], counts[place] = unpack('<dd', earlier, 16 * place - 15) end
  if start then
    size = size + 1
    starts[size], counts[size] = start, units_in
  end
  local function ends(place)
    return calendar and calendar(starts[place], starts[place + 1]) or starts[place] - starts[place] % align + period
  end
  local place = size
  if given_at then
    while place > 1 and ends(place - 1) > given_at do place = place - 1 end
    if size == 0 or given_at < (from or time) or given_at >= ends(place) then left = 0 end
  end
  while place > 0 and left > 0 do
    local back = math.min(left, counts[place])
    left, counts[place] = given_at and 0 or left - back, counts[place] - back
    if counts[place] == 0 then
      if place == #starts then last_end = starts[place] end
      table.remove(starts, place)
      table.remove(counts, place)
    end
    place = place - 1
  end
  size, earlier = #starts, ''
  for place = 1, size - 1 do earlier = earlier .. pack('<dd', starts[place], counts[place]) end
  start, units_in = starts[size], counts[size] or 0
  finish = start and ends(size) or now
  kept = pack('<ddd', time, from or time, finish) .. earlier .. pack('<dd', start or 0, units_in)
end

used = start and start > time and limit or units_in
room = used < limit and limit - used or 0
idle_at = finish
