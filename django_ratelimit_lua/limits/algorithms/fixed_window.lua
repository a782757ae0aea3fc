--[[
Fixed window: a count that starts again with every window.

With units reserved ahead there are several windows in use, and the next hit goes by the last. The others only matter when
units are given back; of more than sixteen, the first two that are still to come are counted as one.

record          limit, period, kind, previous, current, following, last
                kind: 0 the window starts with its first hit, 1 with the clock's multiples of the period, 2 with a calendar,
                of which the others are four boundaries in a row around now; more: of a calendar, where calls may wait: 1 if
                the calendar goes on for longer than it is told here (else 0), then further boundaries
state           clock, the first moment that the first window stands for, the end of the last window, then for each window in
                use its start and its count, oldest first
promise         at most `limit` units in one window, so at most twice that in any period
]]
local kind, previous, current, following, last = a, b, c, d, e
local time, from, last_end, size = now, nil, 0, 0
local starts, counts, boundaries = {}, {}, nil
if kind == 2 then
  boundaries = {previous, current, following, last}
  for offset = 9, #more, 8 do boundaries[#boundaries + 1] = unpack('<d', more, offset) end
  -- The caller's clock is days off: move its calendar by whole periods, so that it surrounds this server's time.
  local is_off = now < previous or now >= last
  local shift = is_off and floor((now - current) / period) * period or 0
  for i = 1, #boundaries do boundaries[i] = boundaries[i] + shift end
end

-- Where the window that holds a moment starts and ends, if it does not start with its own first hit; of a moment that
-- is further ahead than the boundaries, only where the last of these is.
local function window(moment)
  if kind == 0 then return nil, nil end
  if kind == 1 then return moment - moment % period, moment - moment % period + period end
  if moment < boundaries[1] then return boundaries[1] - period, boundaries[1] end
  for i = 2, #boundaries do
    if moment < boundaries[i] then return boundaries[i - 1], boundaries[i] end
  end
  return boundaries[#boundaries], nil
end

local function finish(place)
  if kind == 0 then return starts[place] + period end
  local _, finishes = window(starts[place])
  if finishes then return finishes end
  if place < size then return starts[place + 1] end
  return last_end > starts[place] and last_end or starts[place] + period
end

local function remove(place)
  table.remove(starts, place)
  table.remove(counts, place)
  size = size - 1
end

local state = checked(redis.pcall('GET', key), key)
if state and #state >= 40 and #state % 16 == 8 and is_ours(state, #state) then
  local clock
  clock, from, last_end = unpack('<ddd', state)
  local back = clock_regression(clock)
  if kind == 2 and clock < boundaries[4] then back = 0 end -- Days and months are what the calendar says.
  clock, from, last_end = clock - back, from - back, last_end - back
  for offset = 25, #state, 16 do
    size = size + 1
    starts[size], counts[size] = unpack('<dd', state, offset)
    starts[size] = starts[size] - back
  end
  if back > 0 then
    local moved = {pack('<ddd', clock, from, last_end)}
    for i = 1, size do moved[i + 1] = pack('<dd', starts[i], counts[i]) end
    rcall('SET', key, table.concat(moved), 'KEEPTTL')
  end
  if clock > time then time = clock end
  local place = 1
  while place < size do
    if starts[place + 1] < finish(place) then
      -- One window, after an edit; and for good, or it would end before who was refused was told it would.
      counts[place + 1] = bounded(counts[place] + counts[place + 1])
      remove(place)
    else
      place = place + 1
    end
  end
  local opens = window(time)
  while size > 0 and starts[1] <= time do
    -- Hits since this window opened belong to it, whatever windows were when they were counted.
    if opens then
      local is_of_clock = clock >= opens and (size == 1 or starts[2] > clock)
      if starts[1] >= opens or is_of_clock then
        starts[1] = opens
        break
      end
    elseif starts[1] + period > time then
      break
    end
    from = finish(1)
    remove(1)
  end
end
if size == 0 then last_end = 0 end

-- Of a moment for which the calendar is not told far enough: when it will be told of one window more.
local beyond = #more > 0 and unpack('<d', more) == 1 and function(moment)
  if moment < boundaries[#boundaries] then return nil end
  local _, finishes = window(time)
  return finishes
end

local function when_allowed(cost)
  if cost > limit then return nil end
  if size == 0 then return now end
  local moment = starts[size] > time and starts[size] or now
  if counts[size] + cost > limit then
    moment = finish(size)
    if beyond then return moment, beyond(moment) end
  end
  return moment
end

local function idle_at()
  return size > 0 and finish(size) or now
end

local function save()
  local states = {pack('<ddd', time, from or time, idle_at())}
  for i = 1, size do states[i + 1] = pack('<dd', starts[i], counts[i]) end
  write(key, table.concat(states), idle_at(), time)
end

local function charge(cost, moment)
  if moment < time then moment = time end
  if size > 0 and moment < finish(size) then
    counts[size] = bounded(counts[size] + cost)
    if moment < starts[size] then moment = starts[size] end
  else
    size, last_end = size + 1, 0
    starts[size], counts[size] = window(moment) or moment, bounded(cost)
    if size == 1 then from = starts[1] end
    if size > 16 then
      local place = starts[1] > time and 1 or 2
      counts[place + 1] = bounded(counts[place] + counts[place + 1])
      remove(place)
    end
  end
  save()
  return moment
end

-- Those of a hit go back to its window; else the latest go back first.
local refund = op == 'refund' and function(cost)
  local place = size
  if given_at then
    while place > 1 and finish(place - 1) > given_at do place = place - 1 end
    if size == 0 or given_at < from or given_at >= finish(place) then cost = 0 end
  end
  while place > 0 and cost > 0 do
    local back = math.min(cost, counts[place])
    cost, counts[place] = given_at and 0 or cost - back, counts[place] - back
    if counts[place] == 0 then
      if place == size then last_end = starts[place] end
      remove(place)
    end
    place = place - 1
  end
  save()
end

local function report()
  if size > 0 and starts[size] > time then return limit, 0, idle_at() end
  local count = size > 0 and counts[size] or 0
  return count, count < limit and limit - count or 0, idle_at()
end

return when_allowed, charge, refund, report, beyond

--[==[ hit
local time, from, start, count, finish = now, nil, nil, 0, nil
local opens = kind == 1 and now - now % period
if state then
  local clock, last_end, most = 0, 0, 9007199254740992
  if #state ~= 40 then return again end
  clock, from, last_end, start, count = unpack('<ddddd', state)
  if not (clock >= 0 and clock - now <= 60000000 and from > -most and from < most and last_end > -most and last_end < most
      and start >= 0 and start < most and count >= 0 and count < most
      and clock % 1 + from % 1 + last_end % 1 + start % 1 + count % 1 == 0) then return again end
  if clock > time then
    time, opens = clock, kind == 1 and clock - clock % period
  end
  if opens and start <= time then
    start = (start >= opens or clock >= opens) and opens or nil
  elseif start + period <= time then
    start = nil
  end
  finish = start and (opens and start - start % period or start) + period
end

local function when_allowed(cost)
  local moment
  if cost <= limit then
    moment = start and count + cost > limit and finish or start and start > time and start or now
  end
  return moment
end

local function charge(cost, moment, refused)
  if not start then
    start, count = opens or time, 0
    from, finish = start, start + period
  end
  count = bounded(count + cost)
  write(key, pack('<ddddd', time, from, finish, start, count), finish, time)
  return time
end

local function report()
  local used = not start and 0 or start > time and limit or count
  return used, used < limit and limit - used or 0, start and finish or now
end
]==]
