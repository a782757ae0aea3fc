--[[
Sliding window in segments: the oldest, partly expired segment counts whole.

record          limit, period; a: the length of a segment in microseconds
state           clock, the last departure, then for each segment in use its end and its count, oldest first
promise         never more than `limit` units in any period; a unit is forgotten at most one segment late
]]
local time, last, total, size = now, 0, 0, 0
local ends, counts = {}, {}

local state = checked(redis.pcall('GET', key), key)
if state and #state >= 32 and #state % 16 == 0 then
  local clock
  clock, last = unpack('<dd', state)
  local back = set_back(clock)
  if back > 0 then
    back = back - back % a
    local moved = {pack('<dd', clock - back, last - back)}
    for offset = 17, #state, 16 do
      local segment, units = unpack('<dd', state, offset)
      moved[#moved + 1] = pack('<dd', segment - back, units)
    end
    state = table.concat(moved)
    clock, last = clock - back, last - back
    rcall('SET', key, state, 'KEEPTTL')
  end
  if clock > time then time = clock end
  -- Nothing was counted after the last departure, so no segment need end later than the one that holds it
  -- (it would, had segments been longer before an edit).
  local latest = clock > last and clock or last
  latest = latest - latest % a + a
  for offset = 17, #state, 16 do
    local segment, units = unpack('<dd', state, offset)
    if segment > latest then segment = latest end
    if segment + period > time then
      if ends[size] == segment then
        counts[size] = counts[size] + units
      else
        size = size + 1
        ends[size], counts[size] = segment, units
      end
      total = total + units
    end
  end
end

local function at(cost)
  if cost > limit then return nil end
  local moment, used = last > time and last or time, total
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

local function save()
  local states = {pack('<dd', time, last)}
  for i = 1, size do states[i + 1] = pack('<dd', ends[i], counts[i]) end
  write(key, table.concat(states), size > 0 and ends[size] + period or now, time)
end

local function take(cost, moment)
  if moment < time then moment = time end
  if moment < last then moment = last end
  local segment = moment - moment % a + a
  if ends[size] == segment then
    counts[size] = counts[size] + cost
  else
    size = size + 1
    ends[size], counts[size] = segment, cost
  end
  total, last = total + cost, moment
  save()
end

-- Those of a hit go back to its segment; else the latest go back first.
local give = op == 'refund' and function(cost)
  if given_at then
    for i = 1, size do
      if ends[i] == given_at - given_at % a + a then
        local back = math.min(cost, counts[i])
        counts[i], total = counts[i] - back, total - back
        if counts[i] == 0 then
          table.remove(ends, i)
          table.remove(counts, i)
          size = size - 1
        end
        break
      end
    end
    cost = 0
  end
  while size > 0 and cost > 0 do
    local back = math.min(cost, counts[size])
    cost, total, counts[size] = cost - back, total - back, counts[size] - back
    if counts[size] == 0 then
      size = size - 1
      last = math.min(last, ends[size] or 0)
    end
  end
  save()
end

local function numbers()
  local idle = size > 0 and ends[size] + period or now
  if last > time then return limit, 0, idle end
  return total, total < limit and limit - total or 0, idle
end

return at, take, give, numbers
