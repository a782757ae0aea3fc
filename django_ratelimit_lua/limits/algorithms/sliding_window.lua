--[[
Sliding window in segments: all units of a segment count until its last hit is a period old.

An edit leaves the segments as they are; only the latest one still grows, to the end of the segment that it is in by the new
numbers.

record          limit, period, length
                length: that of a segment, in microseconds
state           clock, the first moment that the first segment stands for, then for each segment in use its last hit
                and its count, oldest first
promise         never more than `limit` units in any period; a unit is forgotten at most one segment late, and what a segment
                has counted exactly one period after its last hit
]]

local units, shadow, count_denied, max_wait, limit, period, length = unpack('<ddddddd', record)
-- cost
local time, from, total, live, last, units_in = now, now, 0, nil, -1, 0
-- state
if state then
  local size = #state
  if size < 32 or size % 16 ~= 0 then return nil, key, state end
  local clock, begins, departure, count = unpack('<dddd', state)
  if not (clock > -9007199254740992 and clock < 9007199254740992 and clock % 1 == 0) then return nil, key, state end
  if clock - now > 60000000 then
    local moved = {}
    for place = 1, size / 8 do
      local number = unpack('<d', state, 8 * place - 7)
      moved[place] = pack('<d', (place <= 2 or place % 2 == 1) and number - clock + now or number)
    end
    state = table.concat(moved)
    rcall('SET', key, state, 'KEEPTTL')
    clock, begins, departure, count = unpack('<dddd', state)
  end
  from = begins
  if clock > time then time = clock end
  local gone = time - period
  for offset = 17, size, 16 do
    if offset > 17 then departure, count = unpack('<dd', state, offset) end
    if not (departure > -9007199254740992 and departure < 9007199254740992 and count > -9007199254740992
      and count < 9007199254740992 and departure % 1 + count % 1 == 0) then
      return nil, key, state
    end
    if departure > gone then
      total = total + count
      live = live or offset
    else
      from = departure + 1
    end
    last = departure
    units_in = count
  end
  if not live then last = -1 end
end

if cost <= limit then
  local left = total
  moment = now
  if left + cost > limit and live then
    for offset = live, #state, 16 do
      local departure, count = unpack('<dd', state, offset)
      departure = departure + period
      if departure > moment then
        if left + cost <= limit then break end
        moment = departure
      end
      left = left - count
    end
  end
end

-- verdict

if at then
  local earlier = ''
  at = time
  if live and last >= at - at % length then
    units_in = units_in + units
    if live < #state - 15 then earlier = string.sub(state, live, -17) end
  else
    if live then
      earlier = string.sub(state, live)
    else
      from, live = at, 17
    end
    units_in = units
  end
  if units_in > 9007199254740991 then units_in = 9007199254740991 end
  last = at
  total = total + units
  kept = earlier == '' and pack('<dddd', time, from, last, units_in)
    or pack('<dd', time, from) .. earlier .. pack('<dd', last, units_in)
elseif op == 'refund' then
  -- Those of a hit go back to its segment; else the latest go back first.
  local given_at, left, lasts, counts, size = tonumber(ARGV[4]), units, {}, {}, 0
  for offset = live or 1, live and #state or 0, 16 do
    size = size + 1
    lasts[size], counts[size] = unpack('<dd', state, offset)
  end
  local place = size
  if given_at then
    while place > 1 and lasts[place - 1] >= given_at do place = place - 1 end
    if size == 0 or given_at < from or given_at > lasts[place] then left = 0 end
  end
  while place > 0 and left > 0 do
    local back = math.min(left, counts[place])
    left, total, counts[place] = given_at and 0 or left - back, total - back, counts[place] - back
    if counts[place] == 0 then
      table.remove(lasts, place)
      table.remove(counts, place)
    end
    place = place - 1
  end
  kept = pack('<dd', time, from)
  for place = 1, #lasts do kept = kept .. pack('<dd', lasts[place], counts[place]) end
  last, live = lasts[#lasts] or -1, #lasts > 0
end

used = total
room = used < limit and limit - used or 0
idle_at = live and last + period or now
