--[[
Sliding log: every unit is remembered by its moment.

record          limit, period
state           a sorted set: score, the moment of a unit; member, a counter of 6 bytes
promise         never more than `limit` units in any period, and no refusal that this does not demand
]]
local units, shadow, count_denied, max_wait, limit, period = unpack('<dddddd', record)
-- cost
local time, last, serial, total, has_gone = now, 0, 0, 0, false
local newest = redis.pcall('ZRANGE', key, -1, -1, 'WITHSCORES')
if newest.err then return nil, key, newest end
if newest[1] then
  last = tonumber(newest[2])
  if #newest[1] ~= 6 or not (last >= 0 and last < 9007199254740992) then return nil, key, newest end
  serial = unpack('>I6', newest[1])
  if last - now > 60000000 then
    local members = rcall('ZRANGE', key, 0, -1, 'WITHSCORES')
    for place = 1, #members, 2 do
      rcall('ZADD', key, string.format('%.0f', members[place + 1] - last + now), members[place])
    end
    last = now
  end
  if last > time then time = last end
  local first = rcall('ZRANGE', key, 0, 0, 'WITHSCORES')
  has_gone = first[2] + period <= time
  if has_gone then
    total = rcall('ZCOUNT', key, string.format('(%.0f', time - period), '+inf')
  else
    total = rcall('ZCARD', key)
  end
end

if cost <= limit then
  moment = now
  if total + cost > limit then
    local place = cost - limit - 1
    moment = rcall('ZRANGE', key, place, place, 'WITHSCORES')[2] + period
    if moment <= time then moment = now end
  end
end

-- verdict

if at then
  at = time
  -- What was refused, or used without asking, is remembered too, but never more than the limit's worth of the latest.
  local is_bounded, added = refused or op == 'charge', units
  if is_bounded and added > limit then added = limit end
  if added == 1 then
    rcall('ZADD', key, at, pack('>I6', serial + 1))
  else
    local members = {}
    for place = 1, added do
      members[#members + 1] = at
      members[#members + 1] = pack('>I6', serial + place)
      if #members == 2000 or place == added then
        rcall('ZADD', key, unpack_args(members))
        members = {}
      end
    end
  end
  total = total + added
  if added > 0 then last = at end
  if has_gone then rcall('ZREMRANGEBYSCORE', key, '-inf', time - period) end
  if is_bounded and total > limit then rcall('ZREMRANGEBYRANK', key, 0, -limit - 1) end
  kept = true
elseif op == 'refund' then
  -- Those of a hit go back by its moment; else the latest go back first.
  local given_at = tonumber(ARGV[4])
  if has_gone then rcall('ZREMRANGEBYSCORE', key, '-inf', time - period) end
  if given_at then
    local at_moment = string.format('%.0f', given_at)
    local members = units > 0 and rcall('ZRANGEBYSCORE', key, at_moment, at_moment, 'LIMIT', 0, units) or {}
    for place = 1, #members do rcall('ZREM', key, members[place]) end
    total = total - #members
  else
    local back = units < total and units or total
    if back > 0 then rcall('ZREMRANGEBYRANK', key, string.format('%.0f', -back), -1) end
    total = total - back
  end
  last = total > 0 and tonumber(rcall('ZRANGE', key, -1, -1, 'WITHSCORES')[2]) or 0
  kept = true
end

used = total
room = used < limit and limit - used or 0
idle_at = total > 0 and last + period or now
