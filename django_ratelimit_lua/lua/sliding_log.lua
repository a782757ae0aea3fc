--[[
Sliding log: every unit is remembered by the moment it goes.

record          limit, period
state           a sorted set: score, the moment a unit goes; member, a counter of 6 bytes and, for a unit reserved ahead,
                7 bytes of how far ahead that was
promise         never more than `limit` units in any period, and no refusal that this does not demand
]]
local time, last, serial, length, total = now, 0, 0, 0, 0

local function load()
  time, last, length, total = now, 0, 0, 0
  local newest = checked(redis.pcall('ZRANGE', key, -1, -1, 'WITHSCORES'), key)
  if not newest or not newest[1] then return end
  local member, score = newest[1], tonumber(newest[2])
  if (#member ~= 6 and #member ~= 13) or not (score >= 0 and score < 9007199254740992) then
    -- Not written by this program: no more ours to keep than a key of another type.
    rcall('DEL', key)
    cleared = cleared + 1
    return
  end
  last, serial = score, unpack('>I6', member)
  local clock = #member == 13 and last - unpack('>I7', member, 7) or last
  local back = set_back(clock)
  if back > 0 then
    local units = rcall('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #units, 2 do rcall('ZADD', key, string.format('%.0f', units[i + 1] - back), units[i]) end
    clock, last = clock - back, last - back
  end
  if clock > time then time = clock end
  length = rcall('ZCARD', key)
  total = rcall('ZCOUNT', key, string.format('(%.0f', time - period), '+inf')
end
load()

local function at(cost)
  if cost > limit then return nil end
  local moment = last > time and last or time
  local excess = total + cost - limit
  if excess > 0 then
    local oldest = length - total + excess - 1
    local freed = tonumber(rcall('ZRANGE', key, oldest, oldest, 'WITHSCORES')[2]) + period
    if freed > moment then moment = freed end
  end
  return moment > time and moment or now
end

local function idle()
  return total > 0 and last + period or now
end

local function prune()
  rcall('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', time - period))
  length = total
end

local function expire()
  if total > 0 then rcall('PEXPIRE', key, lifetime(idle())) end
end

-- What was refused, or used without asking, is remembered too, but never more than the limit's worth of the latest.
local function take(cost, moment, refused)
  if moment < time then moment = time end
  if moment < last then moment = last end
  local beyond = refused or op == 'charge'
  if beyond and cost > limit then cost = limit end
  local ahead = moment > time and pack('>I7', moment - time) or ''
  local score, units = string.format('%.0f', moment), {}
  for i = 1, cost do
    serial = serial + 1
    units[#units + 1] = score
    units[#units + 1] = pack('>I6', serial) .. ahead
    if #units == 2000 or i == cost then
      rcall('ZADD', key, _G.unpack(units))
      units = {}
    end
  end
  last, length, total = moment, length + cost, total + cost
  if beyond and total > limit then
    rcall('ZREMRANGEBYRANK', key, 0, length - limit - 1)
    total = limit
  end
  prune()
  expire()
end

-- Those of a hit go back by its moment; else the latest go back first.
local give = op == 'refund' and function(cost)
  prune()
  if given_at then
    local moment = string.format('%.0f', given_at)
    local units = cost > 0 and rcall('ZRANGEBYSCORE', key, moment, moment, 'LIMIT', 0, cost) or {}
    for i = 1, #units do rcall('ZREM', key, units[i]) end
  elseif cost > 0 then
    rcall('ZREMRANGEBYRANK', key, string.format('%.0f', -cost), -1)
  end
  load()
  expire()
end

local function numbers()
  if last > time then return limit, 0, idle() end
  return total, total < limit and limit - total or 0, idle()
end

return at, take, give, numbers
