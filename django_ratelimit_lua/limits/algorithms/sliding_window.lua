--[[
Sliding window in segments: all units of a segment count until its last hit is a period old.

With units reserved far ahead, what the next one has to wait for is in the last period before the latest. Segments further
back only matter when units are given back; of more than sixteen, the first that are still to go are counted as one, at the
last departure of them. An edit leaves the segments as they are; only the latest one still grows, to the end of the segment
that it is in by the new numbers.

record          limit, period, length
                length: that of a segment, in microseconds
state           clock, the first moment that the first segment stands for, then for each segment in use the last departure
                in it and its count, oldest first
promise         never more than `limit` units in any period; a unit is forgotten at most one segment late, and what a segment
                has counted exactly one period after its last hit
]]
local length = a
local time, from, total, size = now, now, 0, 0
local lasts, counts = {}, {}

local state = checked(redis.pcall('GET', key), key)
if state and #state >= 32 and #state % 16 == 0 and is_ours(state, #state) then
  local clock
  clock, from = unpack('<dd', state)
  local back = clock_regression(clock)
  if back > 0 then
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
    if last + period > time then
      size = size + 1
      lasts[size], counts[size] = last, units
      total = total + units
    else
      from = last + 1
    end
  end
end

local function when_allowed(cost)
  if cost > limit then return nil end
  local moment, used = size > 0 and lasts[size] > time and lasts[size] or time, total
  for i = 1, size do
    local gone = lasts[i] + period
    if gone > moment then
      if used + cost <= limit then break end
      moment = gone
    end
    used = used - counts[i]
  end
  return moment > time and moment or now
end

local function idle_at()
  return size > 0 and lasts[size] + period or now
end

local function save()
  local states = {pack('<dd', time, from)}
  for i = 1, size do states[i + 1] = pack('<dd', lasts[i], counts[i]) end
  write(key, table.concat(states), idle_at(), time)
end

local function remove(place)
  table.remove(lasts, place)
  table.remove(counts, place)
  size = size - 1
end

local function charge(cost, moment)
  if moment < time then moment = time end
  if size > 0 and moment < lasts[size] then moment = lasts[size] end
  if size > 0 and lasts[size] >= moment - moment % length then
    lasts[size], counts[size] = moment, bounded(counts[size] + cost)
  else
    size = size + 1
    lasts[size], counts[size] = moment, bounded(cost)
    if size == 1 then from = moment end
  end
  if size > 16 + period / length then
    local place = 1
    while place < size and lasts[place] <= time do place = place + 1 end
    if place < size and lasts[place + 1] + period <= moment then
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
    while place > 1 and lasts[place - 1] >= given_at do place = place - 1 end
    if size == 0 or given_at < from or given_at > lasts[place] then cost = 0 end
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
local time, from, total, live, last, units = now, now, 0, nil, -1, 0
if state then
  local size, most = #state, 9007199254740992
  if size < 32 or size % 16 ~= 0 then return again end
  local clock, since, moment, count = unpack('<dddd', state)
  if not (clock >= 0 and clock - now <= 60000000 and since > -most and since < most and clock % 1 + since % 1 == 0) then
    return again
  end
  if clock > time then time = clock end
  from = since
  local gone, offset = time - period, 17
  while offset < size do
    if offset > 17 then moment, count = unpack('<dd', state, offset) end
    if not (moment > last and moment < most and count >= 0 and count < most and moment % 1 + count % 1 == 0) then
      return again
    end
    if moment > gone then
      total = total + count
      live = live or offset
    else
      from = moment + 1
    end
    last, units = moment, count
    offset = offset + 16
  end
end

local function when_allowed(cost)
  local moment
  if cost <= limit then
    local left = total
    moment = last > time and last or now
    if left + cost > limit then
      for offset = live, #state, 16 do
        local departure, count = unpack('<dd', state, offset)
        local gone = departure + period
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
  local earlier = ''
  if live and last >= time - time % length then
    units = bounded(units + cost)
    if live < #state - 15 then earlier = string.sub(state, live, -17) end
  else
    if live then
      earlier = string.sub(state, live)
    else
      from, live = time, 17
    end
    units = bounded(cost)
  end
  last, total = time, total + cost
  local kept = earlier == '' and pack('<dddd', time, from, last, units)
    or pack('<dd', time, from) .. earlier .. pack('<dd', last, units)
  write(key, kept, last + period, time)
  return time
end

local function report()
  local used = last > time and limit or total
  return used, used < limit and limit - used or 0, live and last + period or now
end
]==]
