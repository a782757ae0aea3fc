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
local units, shadow, count_denied, max_wait, limit, period, queue = unpack('<ddddddd', record)
-- cost
local slot, given = string.sub(record, 57, 76), #record - 56
local held, last, waiting = 0, 0, 0
local newest = redis.pcall('ZRANGE', key, -1, -1, 'WITHSCORES')
if newest.err then return nil, key, newest end
if newest[1] then
  local size = #newest[1]
  last = tonumber(newest[2])
  if (size ~= 20 and size ~= 24) or not (last >= 0 and last < 9007199254740992) then return nil, key, newest end
end
if last > now then
  if last > now + unpack('>I4', newest[1], 17) * 1000 then
    -- Deadlines further away than a slot lasts were given by a clock that was set back since.
    local slots = rcall('ZRANGEBYSCORE', key, string.format('(%.0f', now), '+inf', 'WITHSCORES')
    last = 0
    for place = 1, #slots, 2 do
      local deadline = now + unpack('>I4', slots[place], 17) * 1000
      if tonumber(slots[place + 1]) > deadline then
        rcall('ZADD', key, deadline, slots[place])
      else
        deadline = tonumber(slots[place + 1])
      end
      if deadline > last then last = deadline end
    end
  end
  held = rcall('ZCOUNT', key, string.format('(%.0f', now), '+inf')
end

-- Who waits: those that have not asked again are gone.
local queued = redis.pcall('ZCARD', key .. ':q')
if queued ~= 0 then
  if type(queued) == 'table' then return nil, key .. ':q', queued end
  local alive = redis.pcall('ZCARD', key .. ':w')
  if type(alive) == 'table' then return nil, key .. ':w', alive end
  local latest = alive > 0 and tonumber(rcall('ZRANGE', key .. ':w', -1, -1, 'WITHSCORES')[2]) or 0
  if alive ~= queued or not (latest < 9007199254740992) then
    -- One of the two was evicted: those that wait still come to stand there anew.
    rcall('DEL', key .. ':q', key .. ':w')
  else
    if latest > now + 2000000 then -- By a clock that was set back since.
      for _, late in ipairs(rcall('ZRANGEBYSCORE', key .. ':w', string.format('(%.0f', now + 2000000), '+inf')) do
        rcall('ZADD', key .. ':w', now + 2000000, late)
      end
    end
    local gone = rcall('ZRANGEBYSCORE', key .. ':w', '-inf', string.format('%.0f', now))
    for _, lost in ipairs(gone) do
      rcall('ZREM', key .. ':q', lost)
      rcall('ZREM', key .. ':w', lost)
    end
    waiting = queued - #gone
  end
end

if cost <= limit then
  -- Units that are waited for by those who came before; no more are looked at than could matter.
  local ahead = 0
  if waiting > 0 then
    ahead = slot ~= '' and rcall('ZRANK', key .. ':q', slot .. pack('>I4', cost)) or waiting
    if ahead > 0 and ahead < limit - held then
      local earlier = rcall('ZRANGE', key .. ':q', 0, ahead - 1)
      ahead = 0
      for place = 1, #earlier do ahead = ahead + unpack('>I4', earlier[place], 21) end
    end
  end
  -- When slots end if they are not renewed: a guess, as they may be released before, and renewed as well.
  local excess = held + ahead + cost - limit
  moment = now
  if excess > 0 and held > 0 then
    local place = (excess < held and excess or held) - held - 1
    moment = tonumber(rcall('ZRANGE', key, place, place, 'WITHSCORES')[2])
  elseif excess > 0 then
    moment = now + 100000 -- As often those ask again that are waited for.
  end
  accepts = moment
end

-- verdict

local deadline, leaves -- Of the slots that are taken or renewed, and whether the place in the queue is given up.
if at and given < 20 then
  at = 0 -- It could not be released.
elseif at and op == 'charge' then
  -- A slot that is held lasts from now on for as long as it says. One that has ended is not taken again: it may have been
  -- released in the same moment.
  local ends = rcall('ZSCORE', key, slot)
  at = 0
  if ends and tonumber(ends) > now then
    at, deadline = now, now + unpack('>I4', slot, 17) * 1000
  end
elseif refused then
  -- Who is refused and waits comes to stand behind the others, if there is room, or says again that it waits.
  at = 0
  local waits, member = given == 21 and moment and moment > now, slot .. pack('>I4', units)
  local place = waits and rcall('ZRANK', key .. ':q', member) or waiting
  if waits and (place < waiting or waiting < queue) then
    if place == waiting then
      local latest = rcall('ZRANGE', key .. ':q', -1, -1, 'WITHSCORES')[2]
      local joins = latest and tonumber(latest) >= now and tonumber(latest) + 1 or now
      rcall('ZADD', key .. ':q', joins, member)
      waiting = waiting + 1
    end
    rcall('ZADD', key .. ':w', now + 2000000, member)
    local milliseconds = math.floor((2000000 + slack) / 1000) + 1
    rcall('PEXPIRE', key .. ':q', milliseconds)
    rcall('PEXPIRE', key .. ':w', milliseconds)
    at = -1 - place
  end
elseif at then
  if last > 0 then rcall('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', now)) end
  at, leaves, held = now, true, held + units
  deadline = now + (given == 24 and unpack('>I4', record, 77) or unpack('>I4', slot, 17)) * 1000
elseif op == 'refund' and given >= 20 then -- Whoever does not say which slot releases none.
  local members, most, released = {}, math.min(units, 100000), 0
  leaves = true
  for place = 1, most do
    members[#members + 1] = place == 1 and slot or slot .. pack('>I4', place)
    if #members == 2000 or place == most then
      released = released + rcall('ZREM', key, unpack_args(members))
      members = {}
    end
  end
  if released > 0 then
    newest = rcall('ZRANGE', key, -1, -1, 'WITHSCORES')
    last = newest[1] and tonumber(newest[2]) or 0
    held = last > now and rcall('ZCOUNT', key, string.format('(%.0f', now), '+inf') or 0
  end
end
if deadline then
  if deadline > last then last = deadline end
  if units == 1 then
    rcall('ZADD', key, deadline, slot)
  else
    local members = {}
    for place = 1, units do
      members[#members + 1] = deadline
      members[#members + 1] = place == 1 and slot or slot .. pack('>I4', place)
      if #members == 4000 or place == units then
        rcall('ZADD', key, unpack_args(members))
        members = {}
      end
    end
  end
  kept = true
end
if leaves and waiting > 0 then
  local member = slot .. pack('>I4', units)
  waiting = waiting - rcall('ZREM', key .. ':q', member)
  rcall('ZREM', key .. ':w', member)
end

used, room = held, limit - held - waiting
if room < 0 then room = 0 end
idle_at = held > 0 and last or now
