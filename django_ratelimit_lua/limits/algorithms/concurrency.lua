--[[
Concurrency: so many slots, each held by one call until it is released, or until it ends by itself.

A slot is 20 bytes: 16 that nobody can guess, and for how many milliseconds it lasts from when it is taken or renewed
last. A hit of several units holds several, told by a number behind these bytes. What is released is named by the slot:
to release it again, or one that is not there, frees nothing. Those who wait for one stand in a queue, in the order in
which they came; whoever comes later gets a slot only where there is one for each of those before. Who waits says so by
asking again, within two seconds of the last time; else the place in the queue is lost.

record          limit, period, queue
                queue: how many may wait; period: 0, as slots are for no time
                more: the slot that is taken, waited for, released or confirmed; of who waits, one byte behind it; of a
                slot that has to be confirmed, in 4 bytes for how many milliseconds it lasts until then
state           a sorted set: member, a slot; score, when it ends. In `<key>:q` those who wait, by their order, and in
                `<key>:w` the same, by when they are taken for gone: a slot, and in 4 bytes how many are waited for
promise         never more than `limit` slots are held, and nobody goes before who came earlier and still waits
]]
local queue = a
local queue_key, alive_key = key .. ':q', key .. ':w'
local slot, waits = string.sub(more, 1, 20), #more == 21
local unconfirmed = #more == 24 and unpack('>I4', more, 21)
local used, last, waiting = 0, 0, 0

-- Deadlines further away than a slot lasts were given by a clock that was set back since.
local function mend()
  local slots = rcall('ZRANGEBYSCORE', key, string.format('(%.0f', now), '+inf', 'WITHSCORES')
  last = 0
  for i = 1, #slots, 2 do
    local deadline = now + unpack('>I4', slots[i], 17) * 1000
    if tonumber(slots[i + 1]) > deadline then
      rcall('ZADD', key, deadline, slots[i])
    else
      deadline = tonumber(slots[i + 1])
    end
    if deadline > last then last = deadline end
  end
end

local function load()
  used, last = 0, 0
  local newest = checked(redis.pcall('ZRANGE', key, -1, -1, 'WITHSCORES'), key)
  if not newest or not newest[1] then return end
  local size = #newest[1]
  last = tonumber(newest[2])
  if (size ~= 20 and size ~= 24) or not (last >= 0 and last < 9007199254740992) then
    -- Not written by this program: no more ours to keep than a key of another type.
    rcall('DEL', key)
    cleared, last = cleared + 1, 0
    return
  end
  if last > now then
    if last > now + unpack('>I4', newest[1], 17) * 1000 then mend() end
    used = rcall('ZCOUNT', key, string.format('(%.0f', now), '+inf')
  end
end
load()

-- Of so many units, the members that stand for them.
local function each_member(cost, act)
  local members = {}
  for i = 1, cost do
    members[#members + 1] = i == 1 and slot or slot .. pack('>I4', i)
    if #members == 2000 or i == cost then
      act(members)
      members = {}
    end
  end
end

-- Who waits: those that have not asked again are gone. Returns how many there are.
local function load_queue()
  local length = checked(redis.pcall('ZCARD', queue_key), queue_key) or 0
  if length == 0 then return 0 end
  local alive = checked(redis.pcall('ZCARD', alive_key), alive_key) or 0
  local latest = alive > 0 and tonumber(rcall('ZRANGE', alive_key, -1, -1, 'WITHSCORES')[2]) or 0
  if alive ~= length or not (latest < 9007199254740992) then
    -- One of the two was evicted: those that wait still come to stand there anew.
    rcall('DEL', queue_key, alive_key)
    return 0
  end
  if latest > now + 2000000 then -- By a clock that was set back since.
    for _, member in ipairs(rcall('ZRANGEBYSCORE', alive_key, string.format('(%.0f', now + 2000000), '+inf')) do
      rcall('ZADD', alive_key, now + 2000000, member)
    end
  end
  local gone = rcall('ZRANGEBYSCORE', alive_key, '-inf', string.format('%.0f', now))
  for _, member in ipairs(gone) do
    rcall('ZREM', queue_key, member)
    rcall('ZREM', alive_key, member)
  end
  return length - #gone
end
waiting = load_queue()

-- Units that are waited for by those who came before; no more are looked at than could matter.
local function units_ahead(cost)
  if waiting == 0 then return 0 end
  local place = slot ~= '' and rcall('ZRANK', queue_key, slot .. pack('>I4', cost)) or waiting
  if place >= limit - used then return place end
  local units = 0
  for _, member in ipairs(place > 0 and rcall('ZRANGE', queue_key, 0, place - 1) or {}) do
    units = units + unpack('>I4', member, 21)
  end
  return units
end

-- When slots end that nobody renews: a guess, as they may be released before, and renewed as well.
local function when_allowed(cost)
  if cost > limit then return nil end
  local excess = used + units_ahead(cost) + cost - limit
  if excess <= 0 then return now, now end
  local moment = now + 100000 -- As often those ask again that are waited for.
  if used > 0 then
    local place = (excess < used and excess or used) - used - 1
    moment = tonumber(rcall('ZRANGE', key, place, place, 'WITHSCORES')[2])
  end
  return moment, moment
end

local function expire(name, deadline)
  local milliseconds = lifetime(deadline)
  rcall('PEXPIRE', name, milliseconds)
end

local function leave(cost)
  local member = slot .. pack('>I4', cost)
  if rcall('ZREM', queue_key, member) == 1 then waiting = waiting - 1 end
  rcall('ZREM', alive_key, member)
end

-- Who is refused and waits comes to stand behind the others, if there is room, or says again that it waits.
local function wait(cost)
  local member = slot .. pack('>I4', cost)
  local place = rcall('ZRANK', queue_key, member)
  if not place then
    if waiting >= queue then return 0 end
    local latest = rcall('ZRANGE', queue_key, -1, -1, 'WITHSCORES')[2]
    local moment = latest and tonumber(latest) >= now and tonumber(latest) + 1 or now
    rcall('ZADD', queue_key, moment, member)
    place, waiting = waiting, waiting + 1
  end
  rcall('ZADD', alive_key, now + 2000000, member)
  expire(queue_key, now + 2000000)
  expire(alive_key, now + 2000000)
  return -1 - place
end

local function hold(cost, deadline)
  each_member(cost, function(members)
    local scored = {}
    for i, member in ipairs(members) do scored[2 * i - 1], scored[2 * i] = deadline, member end
    rcall('ZADD', key, unpack_args(scored))
  end)
  if deadline > last then last = deadline end
  expire(key, last)
end

-- A slot that is held lasts from now on for as long as it says. One that has ended is not taken again: it may have been
-- released in the same moment.
local function confirm(cost)
  local ends = rcall('ZSCORE', key, slot)
  if not ends or tonumber(ends) <= now then return 0 end
  hold(cost, now + unpack('>I4', slot, 17) * 1000)
  return now
end

local function charge(cost, moment, refused)
  if #slot < 20 then return 0 end -- Nobody could release it.
  if op == 'charge' then return confirm(cost) end
  if refused then
    local departs = when_allowed(cost)
    return waits and departs and departs > now and wait(cost) or 0
  end
  if last > 0 then rcall('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', now)) end
  hold(cost, now + (unconfirmed or unpack('>I4', slot, 17)) * 1000)
  if waiting > 0 then leave(cost) end
  used = used + cost
  return now
end

local refund = op == 'refund' and function(cost)
  if #slot < 20 then return end -- Whoever does not say which slot releases none.
  if cost > 100000 then cost = 100000 end
  each_member(cost, function(members) rcall('ZREM', key, unpack_args(members)) end)
  if waiting > 0 then leave(cost) end
  load()
end

local function report()
  local room = limit - used - waiting
  return used, room > 0 and room or 0, used > 0 and last or now
end

return when_allowed, charge, refund, report

--[==[ hit
local more = string.sub(ARGV[$record], 97)
local slot, unconfirmed = string.sub(more, 1, 20), #more == 24 and unpack('>I4', more, 21)
local used, last = 0, 0
local newest = redis.pcall('ZRANGE', key, -1, -1, 'WITHSCORES')
if newest.err or (#more ~= 20 and #more ~= 24) or cost ~= 1 then return again end
if newest[1] then
  local size = #newest[1]
  last = tonumber(newest[2])
  if (size ~= 20 and size ~= 24) or not (last >= 0 and last < 9007199254740992) then return again end
  if last > now then
    if last > now + unpack('>I4', newest[1], 17) * 1000 then return again end
    used = rcall('ZCOUNT', key, string.format('(%.0f', now), '+inf')
  end
end
if rcall('EXISTS', key .. ':q') == 1 then return again end

local function when_allowed(cost)
  local moment
  if cost <= limit then
    moment = now
    if used >= limit then moment = tonumber(rcall('ZRANGE', key, -limit, -limit, 'WITHSCORES')[2]) end
  end
  return moment
end

local function charge(cost, moment, refused)
  local deadline = now + (unconfirmed or unpack('>I4', slot, 17)) * 1000
  if last > 0 then rcall('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', now)) end
  rcall('ZADD', key, deadline, slot)
  used = used + 1
  if deadline > last then last = deadline end
  expire(key, last)
  return now
end

local function report()
  local room = limit - used
  return used, room > 0 and room or 0, used > 0 and last or now
end
]==]
