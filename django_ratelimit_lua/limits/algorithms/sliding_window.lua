--[[
Sliding window in segments: the oldest, partly expired segment counts whole.

With units reserved far ahead, what the next one has to wait for is in the last period before the latest. Segments further
back only matter when units are given back; of more than sixteen, the first that are still to go are counted as one, at the
end of the last of them.

record          limit, period, length
                length: that of a segment, in microseconds
state           clock, the first moment that the first segment stands for, then for each segment in use the last departure
                in it and its count, oldest first
promise         never more than `limit` units in any period; a unit is forgotten at most one segment late
]]
local length = a
local time, from, total, size = now, now, 0, 0
local lasts, ends, counts = {}, {}, {}

local function finish(moment)
  return moment - moment % length + length
end

local state = checked(redis.pcall('GET', key), key)
if state and #state >= 32 and #state % 16 == 0 and is_ours(state, #state) then
  local clock
  clock, from = unpack('<dd', state)
  local back = clock_regression(clock)
  if back > 0 then
    back = back - back % length
    local moved = {pack('<dd', clock - back, from - back)}
    for offset = 17, #state, 16 do
      local last, units = unpack('<dd', state, offset)
      moved[#moved + 1] = pack('<dd', last - back, units)
    end
    state = table.concat(moved)
    clock, from = clock - back, from - back
    rcall('SET', key, state, 'KEEPTTL')
  end
  if clock > time then time = clock end
  for offset = 17, #state, 16 do
    local last, units = unpack('<dd', state, offset)
    local segment = last - last % length + length
    if segment + period > time then
      if segment == ends[size] then
        lasts[size], counts[size] = last, counts[size] + units
      else
        size = size + 1
        lasts[size], ends[size], counts[size] = last, segment, units
      end
      total = total + units
    else
      from = segment
    end
  end
end

local function when_allowed(cost)
  if cost > limit then return nil end
  local moment, used = size > 0 and lasts[size] > time and lasts[size] or time, total
  for i = 1, size do
    local gone = ends[i] + period
    if gone > moment then
      if used + cost <= limit then break end
      moment = gone
    end
    used = used - counts[i]
  end
  return moment > time and moment or now
end

local function idle_at()
  return size > 0 and ends[size] + period or now
end

local function save()
  local states = {pack('<dd', time, from)}
  for i = 1, size do states[i + 1] = pack('<dd', lasts[i], counts[i]) end
  write(key, table.concat(states), idle_at(), time)
end

local function remove(place)
  table.remove(lasts, place)
  table.remove(ends, place)
  table.remove(counts, place)
  size = size - 1
end

local function charge(cost, moment)
  if moment < time then moment = time end
  if size > 0 and moment < lasts[size] then moment = lasts[size] end
  local segment = finish(moment)
  if ends[size] == segment then
    lasts[size], counts[size] = moment, bounded(counts[size] + cost)
  else
    size = size + 1
    lasts[size], ends[size], counts[size] = moment, segment, bounded(cost)
    if size == 1 then from = segment - length end
  end
  if size > 16 + period / length then
    local place = 1
    while place < size and lasts[place] <= time do place = place + 1 end
    if place < size and ends[place + 1] + period <= moment then
      counts[place + 1] = bounded(counts[place] + counts[place + 1])
      remove(place)
    end
  end
  total = total + cost
  save()
  return moment
end

-- Those of a hit go back to its segment; else the latest go back first.
local refund = op == 'refund' and function(cost)
  local place = size
  if given_at then
    local segment = finish(given_at)
    while place > 1 and ends[place - 1] >= segment do place = place - 1 end
    if size == 0 or given_at < from or ends[place] < segment then cost = 0 end
  end
  while place > 0 and cost > 0 do
    local back = math.min(cost, counts[place])
    cost, total, counts[place] = given_at and 0 or cost - back, total - back, counts[place] - back
    if counts[place] == 0 then remove(place) end
    place = place - 1
  end
  save()
end

local function report()
  if size > 0 and lasts[size] > time then return limit, 0, idle_at() end
  return total, total < limit and limit - total or 0, idle_at()
end

return when_allowed, charge, refund, report

--[==[ hit
local time, from, total, live, last, finish, units = now, now, 0, nil, nil, nil, 0
if state then
  local size, most = #state, 9007199254740992
  if size < 32 or size % 16 ~= 0 then return again end
  local clock, since, moment, count = unpack('<dddd', state)
  if not (clock >= 0 and clock - now <= 60000000 and since > -most and since < most and clock % 1 + since % 1 == 0) then
    return again
  end
  if clock > time then time = clock end
  from = since
  local offset = 17
  while offset < size do
    if offset > 17 then moment, count = unpack('<dd', state, offset) end
    if not (moment >= 0 and moment < most and count >= 0 and count < most and moment % 1 + count % 1 == 0) then
      return again
    end
    local ends = moment - moment % length + length
    if ends + period <= time then
      from = ends
      if live then return again end
    else
      total = total + count
      if live and ends <= finish then
        if ends < finish then return again end
        -- An edit made them one.
        count = units + count
        state = string.sub(state, 1, offset - 17) .. pack('<dd', moment, count) .. string.sub(state, offset + 16)
        offset, size = offset - 16, size - 16
      end
      live, last, finish, units = live or offset, moment, ends, count
    end
    offset = offset + 16
  end
end

local function when_allowed(cost)
  local moment
  if cost <= limit then
    local left = total
    moment = last and last > time and last or now
    if left + cost > limit then
      for offset = live, #state, 16 do
        local departure, count = unpack('<dd', state, offset)
        local gone = departure - departure % length + length + period
        if gone > moment then
          if left + cost <= limit then break end
          moment = gone
        end
        left = left - count
      end
    end
  end
  return moment
end

local function charge(cost, moment, refused)
  local ends, earlier = time - time % length + length, ''
  if finish == ends then
    units = bounded(units + cost)
    if live < #state - 15 then earlier = string.sub(state, live, -17) end
  else
    if live then
      earlier = string.sub(state, live)
    else
      from = ends - length
    end
    finish, units = ends, bounded(cost)
  end
  last, total = time, total + cost
  local kept = earlier == '' and pack('<dddd', time, from, last, units)
    or pack('<dd', time, from) .. earlier .. pack('<dd', last, units)
  write(key, kept, finish + period, time)
  return time
end

local function report()
  local used = last and last > time and limit or total
  return used, used < limit and limit - used or 0, finish and finish + period or now
end
]==]
