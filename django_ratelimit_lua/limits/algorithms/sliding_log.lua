--[[
Sliding log: every unit is remembered by the moment it goes.

With units reserved far ahead, the next one has to wait for one of the latest `limit`. Older ones only matter when units are
given back: beyond 128 more than the limit they are counted together, at the moment of the last of them.

record          limit, period
state           a sorted set: score, the moment a unit goes; member, a counter of 6 bytes and, for a unit reserved ahead,
                7 bytes of how far ahead that was; first of all perhaps a counter of 0 and 6 bytes: so many units together
promise         never more than `limit` units in any period, and no refusal that this does not demand
]]
local units, shadow, count_denied, max_wait, limit, period = unpack('<dddddd', record)
-- cost
local time, last, serial, total, past, past_at, has_gone = now, 0, 0, 0, 0, 0, false
local newest = redis.pcall('ZRANGE', key, -1, -1, 'WITHSCORES')
if newest.err then return nil, key, newest end
local member, clock = newest[1], nil
if member then
  last = tonumber(newest[2])
  if #member == 6 then
    serial, clock = unpack('>I6', member), last
  elseif #member == 13 then
    serial = unpack('>I6', member)
    clock = last - unpack('>I7', member, 7)
  elseif #member == 12 then
    clock = 0
  end
  if not clock or not (last >= 0 and last < 9007199254740992) then return nil, key, newest end
  if clock - now > 60000000 then
    local members = rcall('ZRANGE', key, 0, -1, 'WITHSCORES')
    for place = 1, #members, 2 do
      rcall('ZADD', key, string.format('%.0f', members[place + 1] - clock + now), members[place])
    end
    last, clock = last - clock + now, now
  end
  if clock > time then time = clock end
  local first = rcall('ZRANGE', key, 0, 0, 'WITHSCORES')
  has_gone = first[2] + period <= time
  if has_gone then
    total = rcall('ZCOUNT', key, string.format('(%.0f', time - period), '+inf')
  else
    total = rcall('ZCARD', key)
  end
  if #first[1] == 12 then
    past_at = tonumber(first[2])
    if not has_gone then
      past = unpack('>I6', first[1], 7)
      total = total - 1 + past
    end
  end
end

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

-- verdict

if at then
  if at < time then at = time end
  if at < last then at = last end
  -- What was refused, or used without asking, is remembered too, but never more than the limit's worth of the latest.
  local is_bounded, added = refused or op == 'charge', units
  if is_bounded and added > limit then added = limit end
  local ahead = at > time and pack('>I7', at - time) or ''
  if added == 1 then
    rcall('ZADD', key, at, pack('>I6', serial + 1) .. ahead)
  else
    local members = {}
    for place = 1, added do
      members[#members + 1] = at
      members[#members + 1] = pack('>I6', serial + place) .. ahead
      if #members == 2000 or place == added then
        rcall('ZADD', key, unpack_args(members))
        members = {}
      end
    end
  end
  total = total + added
  if added > 0 then last = at end
  if has_gone then rcall('ZREMRANGEBYSCORE', key, '-inf', time - period) end
  if is_bounded and total > limit then
    rcall('ZREMRANGEBYRANK', key, 0, -limit - 1)
  elseif total - past > limit + 128 then
    -- The earliest beyond that are counted together, at the moment of the last of them.
    local more, first = total - past - limit - 64, past > 0 and 1 or 0
    local latest = rcall('ZRANGE', key, first + more - 1, first + more - 1, 'WITHSCORES')[2]
    rcall('ZREMRANGEBYRANK', key, 0, first + more - 1)
    rcall('ZADD', key, latest, pack('>I6I6', 0, past + more))
  end
  kept = true
elseif op == 'refund' then
  -- Those of a hit go back by its moment; else the latest go back first.
  local given_at, left = tonumber(ARGV[4]), units
  if has_gone then rcall('ZREMRANGEBYSCORE', key, '-inf', time - period) end
  if given_at then
    local at_moment = string.format('%.0f', given_at)
    local members = left > 0 and rcall('ZRANGEBYSCORE', key, at_moment, at_moment, 'LIMIT', 0, left + 1) or {}
    for place = 1, #members do
      if #members[place] ~= 12 and left > 0 then
        rcall('ZREM', key, members[place])
        left, total = left - 1, total - 1
      end
    end
    if given_at > past_at or given_at + period <= time then left = 0 end
  else
    local back = left < total - past and left or total - past
    if back > 0 then rcall('ZREMRANGEBYRANK', key, string.format('%.0f', -back), -1) end
    left, total = left - back, total - back
  end
  if past > 0 and left > 0 then
    rcall('ZREMRANGEBYRANK', key, 0, 0)
    if past > left then rcall('ZADD', key, string.format('%.0f', past_at), pack('>I6I6', 0, past - left)) end
    total = total - math.min(past, left)
  end
  last = total > 0 and tonumber(rcall('ZRANGE', key, -1, -1, 'WITHSCORES')[2]) or 0
  kept = true
end

used = last > time and limit or total
room = used < limit and limit - used or 0
idle_at = total > 0 and last + period or now
