--[[
Fixed window: a count that starts again with every window.

record          limit, period; a: 0 the window starts with its first hit, 1 with the clock's multiples of the period,
                2 with a calendar, of which b, c, d, e are four boundaries in a row around now
state           clock, start, count: of the last window in which anything goes
promise         at most `limit` units in one window, so at most twice that in any period
]]
local time, start, count = now, now, 0

-- Where the window that holds a moment starts and ends, if it does not start with its own first hit.
local function window(moment)
  if a == 0 then return nil, nil end
  if a == 1 then return moment - moment % period, moment - moment % period + period end
  if moment < b then return b - period, b end
  if moment < c then return b, c end
  if moment < d then return c, d end
  if moment < e then return d, e end
  return e, e + period
end

local function finish()
  local _, finishes = window(start)
  return finishes or start + period
end

local state = checked(redis.pcall('GET', key), key)
if state and #state == 24 then
  local clock, began, counted = unpack('<ddd', state)
  local back = a ~= 2 and set_back(clock) or 0 -- Days and months are what the calendar says.
  if back > 0 then
    clock, began = clock - back, began - back
    rcall('SET', key, pack('<ddd', clock, began, counted), 'KEEPTTL')
  end
  if clock > time then time = clock end
  local opens = window(time)
  if opens then
    -- Hits since this window opened belong to it, whatever windows were when they were counted.
    if began > time then
      start, count = began, counted
    elseif clock >= opens or began >= opens then
      start, count = opens, counted
    else
      start = opens
    end
  elseif began + period > time then
    start, count = began, counted
  else
    start = time
  end
else
  start = window(time) or time
end

local function at(cost)
  if cost > limit then return nil end
  if count + cost > limit then return finish() end
  return start > time and start or now
end

local function idle()
  if count > 0 then return finish() end
  return start > time and start or now
end

local function take(cost, moment)
  if moment < time then moment = time end
  if moment >= finish() or (count == 0 and moment >= start) then start, count = window(moment) or moment, 0 end
  count = count + cost
  write(key, pack('<ddd', time, start, count), idle(), time)
end

-- A window ahead whose units are all given back stays the next one: those before it are full.
local give = op == 'refund' and function(cost)
  if given_at and given_at < start then cost = 0 end
  count = count > cost and count - cost or 0
  write(key, pack('<ddd', time, start, count), idle(), time)
end

local function numbers()
  if start > time then return limit, 0, idle() end
  return count, count < limit and limit - count or 0, idle()
end

return at, take, give, numbers
