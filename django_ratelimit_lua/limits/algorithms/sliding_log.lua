--[[
Sliding log: every unit is remembered by the moment it goes.

With units reserved far ahead, the next one has to wait for one of the latest `limit`. Older ones only matter when units are
given back: beyond 128 more than the limit they are counted together, at the moment of the last of them.

record          limit, period
state           a sorted set: score, the moment a unit goes; member, a counter of 6 bytes and, for a unit reserved ahead,
                7 bytes of how far ahead that was; first of all perhaps a counter of 0 and 6 bytes: so many units together
promise         never more than `limit` units in any period, and no refusal that this does not demand
]]
local time, last, serial, total, past, past_at, has_gone = now, 0, 0, 0, 0, 0, false

local function load()
  time, last, total, past, has_gone = now, 0, 0, 0, false
  local newest = checked(redis.pcall('ZRANGE', key, -1, -1, 'WITHSCORES'), key)
  if not newest or not newest[1] then return end
  local member, clock = newest[1], 0
  last = tonumber(newest[2])
  if (#member ~= 6 and #member ~= 12 and #member ~= 13) or not (last >= 0 and last < 9007199254740992) then
    -- Not written by this program: no more ours to keep than a key of another type.
    rcall('DEL', key)
    cleared, last = cleared + 1, 0
    return
  end
  if #member ~= 12 then
    serial = unpack('>I6', member)
    clock = #member == 13 and last - unpack('>I7', member, 7) or last
  end
  local back = clock_regression(clock)
  if back > 0 then
    local units = rcall('ZRANGE', key, 0, -1, 'WITHSCORES')
    for i = 1, #units, 2 do rcall('ZADD', key, string.format('%.0f', units[i + 1] - back), units[i]) end
    clock, last = clock - back, last - back
  end
  if clock > time then time = clock end
  total = rcall('ZCOUNT', key, string.format('(%.0f', time - period), '+inf')
  local first = rcall('ZRANGE', key, 0, 0, 'WITHSCORES')
  has_gone = first[2] + period <= time
  if #first[1] == 12 then
    past_at = tonumber(first[2])
    if past_at + period > time then
      past = unpack('>I6', first[1], 7)
      total = total - 1 + past
    end
  end
end
load()

local function when_allowed(cost)
  local moment
  if cost <= limit then
    moment = last > time and last or now
    local excess = total + cost - limit
    if excess > 0 then
      local leaves = past_at
      if excess > past then
        local place = excess - total - 1
        leaves = tonumber(rcall('ZRANGE', key, place, place, 'WITHSCORES')[2])
      end
      if leaves + period > moment then moment = leaves + period end
      if moment <= time then moment = now end
    end
  end
  return moment
end

local function idle_at()
  return total > 0 and last + period or now
end

local function prune()
  if has_gone then rcall('ZREMRANGEBYSCORE', key, '-inf', time - period) end
end

local function set_past(moment, units)
  if past > 0 then rcall('ZREMRANGEBYRANK', key, 0, 0) end
  if units > 0 then rcall('ZADD', key, string.format('%.0f', moment), pack('>I6I6', 0, units)) end
  past, past_at = units, moment
end

local function expire()
  if total > 0 then
    local milliseconds = lifetime(idle_at())
    rcall('PEXPIRE', key, milliseconds)
  end
end

local function add(cost, moment)
  local ahead = moment > time and pack('>I7', moment - time) or ''
  if cost == 1 then
    rcall('ZADD', key, moment, pack('>I6', serial + 1) .. ahead)
  else
    local units = {}
    for i = 1, cost do
      units[#units + 1] = moment
      units[#units + 1] = pack('>I6', serial + i) .. ahead
      if #units == 2000 or i == cost then
        rcall('ZADD', key, unpack_args(units))
        units = {}
      end
    end
  end
  serial, last, total = serial + cost, moment, total + cost
  prune()
end

-- What was refused, or used without asking, is remembered too, but never more than the limit's worth of the latest.
local function charge(cost, moment, refused)
  if moment < time then moment = time end
  if moment < last then moment = last end
  local beyond = refused or op == 'charge'
  if beyond and cost > limit then cost = limit end
  add(cost, moment)
  if beyond and total > limit then
    rcall('ZREMRANGEBYRANK', key, 0, -limit - 1)
    load()
  elseif total - past > limit + 128 then
    local more, first = total - past - limit - 64, past > 0 and 1 or 0
    local latest = rcall('ZRANGE', key, first + more - 1, first + more - 1, 'WITHSCORES')[2]
    rcall('ZREMRANGEBYRANK', key, first, first + more - 1)
    set_past(tonumber(latest), past + more)
  end
  expire()
  return moment
end

-- Those of a hit go back by its moment; else the latest go back first.
local refund = op == 'refund' and function(cost)
  prune()
  local left = 0
  if given_at then
    local moment = string.format('%.0f', given_at)
    local units = cost > 0 and rcall('ZRANGEBYSCORE', key, moment, moment, 'LIMIT', 0, cost + 1) or {}
    for i = 1, #units do
      if #units[i] ~= 12 and cost > 0 then
        rcall('ZREM', key, units[i])
        cost = cost - 1
      end
    end
    if given_at <= past_at and given_at + period > time then left = cost end
  else
    local units = cost < total - past and cost or total - past
    if units > 0 then rcall('ZREMRANGEBYRANK', key, string.format('%.0f', -units), -1) end
    left = cost - units
  end
  if past > 0 and left > 0 then set_past(past_at, past > left and past - left or 0) end
  load()
  expire()
end

local function report()
  local used = last > time and limit or total
  return used, used < limit and limit - used or 0, idle_at()
end

return when_allowed, charge, refund, report

--[==[ hit
local time, last, serial, total, past, past_at, has_gone = now, 0, 0, 0, 0, 0, false
local newest = redis.pcall('ZRANGE', key, -1, -1, 'WITHSCORES')
if newest.err then return again end
if newest[1] then
  local member, clock = newest[1], nil
  last = tonumber(newest[2])
  if #member == 6 then clock = last elseif #member == 13 then clock = last - unpack('>I7', member, 7) end
  if not clock or not (last >= 0 and last < 9007199254740992 and clock - now <= 60000000) then
    return again
  end
  serial = unpack('>I6', member)
  if clock > time then time = clock end
  local first = rcall('ZRANGE', key, 0, 0, 'WITHSCORES')
  if #first[1] == 12 then return again end
  has_gone = first[2] + period <= time
  if has_gone then
    total = rcall('ZCOUNT', key, string.format('(%.0f', time - period), '+inf')
  else
    total = rcall('ZCARD', key)
  end
end

local function charge(cost, moment, refused)
  add(cost, time)
  expire()
  return time
end
]==]
