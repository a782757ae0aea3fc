--[[
The moment of each unit of the last period.

record   ..., capacity (the limit), period (microseconds)
state    a sorted set: member, a serial number of 6 bytes; score, the moment of the unit
promise  never more than `limit` units in any period, and no refusal that this does not demand
]]
-- A moment as text. Lua by itself writes only 14 of its digits.
local function to_text(moment)
  return string.format('%.0f', moment)
end

-- Units that lie ahead of now, because the clock was set back, become units of now; more than a minute ahead, all are forgotten.
local function set_back(key, now, last)
  if last > now + 60000000 then redis.call('DEL', key) end
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, '(' .. to_text(now), '+inf')) do
    redis.call('ZADD', key, to_text(now), member)
  end
  return last > now + 60000000 and 0 or now
end

local function check(key, record, now, cost)
  local limit, period = struct.unpack('<dd', record, 41)
  local newest = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
  local last, serial, used = tonumber(newest[2] or 0), newest[1] and struct.unpack('>I6', newest[1]) or 0, 0
  if last > now then last = set_back(key, now, last) end
  if newest[1] then used = redis.call('ZCOUNT', key, '(' .. to_text(now - period), '+inf') end
  local accepted_from, excess = now, used + cost - limit
  if cost > limit then
    accepted_from = math.huge
  elseif excess > 0 then
    local place = excess - used - 1
    accepted_from = redis.call('ZRANGE', key, place, place, 'WITHSCORES')[2] + period
  end
  local free_at = used > 0 and last + period or now
  return {accepted_from = accepted_from, goes_at = accepted_from < math.huge and accepted_from or now,
    used = used, free_at = free_at, last = last, serial = serial}
end

-- Of refused units the latest `limit` decide when the next one is accepted, so no more are kept.
local function take(key, record, now, cost, verdict)
  local limit, period = struct.unpack('<dd', record, 41)
  local added, members = math.min(cost, limit), {}
  for place = 1, added do
    members[#members + 1] = to_text(now)
    members[#members + 1] = struct.pack('>I6', verdict.serial + place)
    if #members == 2000 or place == added then
      redis.call('ZADD', key, unpack(members))
      members = {}
    end
  end
  redis.call('ZREMRANGEBYSCORE', key, '-inf', to_text(now - period))
  if verdict.used + added > limit then redis.call('ZREMRANGEBYRANK', key, 0, -limit - 1) end
  redis.call('PEXPIRE', key, math.ceil(period / 1000) + extra_ttl)
  verdict.used, verdict.free_at = math.min(verdict.used + added, limit), now + period
  return nil, now
end

local function refund(key, record, now, cost, verdict, hit_at)
  if hit_at == '' then hit_at = to_text(verdict.last) end
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, hit_at, hit_at, 'LIMIT', 0, to_text(cost))) do
    redis.call('ZREM', key, member)
  end
end
