--[[
Slots that are held until they are released, or until they end. The id of a slot is 16 random bytes, and in 4 bytes for how many
milliseconds it lasts after it is taken or renewed. A hit of several units holds as many: the id, and the id followed by a number.

record   ..., capacity (the number of slots), then the id of the slot that is taken or released; without one, none is
state    a sorted set: member, a slot; score, the moment at which it ends
promise  never more than `capacity` slots are held at any moment
]]
local function to_text(moment)
  return string.format('%.0f', moment)
end

local function lifetime(slot)
  return struct.unpack('>I4', slot, 17) * 1000
end

local function check(key, record, now, cost)
  local limit, used = struct.unpack('<d', record, 41), 0
  local newest = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
  -- A slot that ends more than a minute too late was taken before the clock was set back.
  while newest[1] and tonumber(newest[2]) > now + lifetime(newest[1]) + 60000000 do
    redis.call('ZREM', key, newest[1])
    newest = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')
  end
  local last = tonumber(newest[2] or 0)
  if last > now then used = redis.call('ZCOUNT', key, '(' .. to_text(now), '+inf') end
  local accepted_from, excess = now, used + cost - limit
  if cost > limit then
    accepted_from = math.huge
  elseif excess > 0 then
    local place = excess - used - 1
    accepted_from = tonumber(redis.call('ZRANGE', key, place, place, 'WITHSCORES')[2])
  end
  return {accepted_from = accepted_from, goes_at = accepted_from < math.huge and accepted_from or now,
    used = used, free_at = math.max(last, now)}
end

local function member_of(slot, place)
  return place == 1 and slot or slot .. struct.pack('>I4', place)
end

local function take(key, record, now, cost, verdict)
  local slot = string.sub(record, 49)
  if slot == '' then return nil, 0 end
  local ends = now + lifetime(slot)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', to_text(now))
  for place = 1, cost do redis.call('ZADD', key, to_text(ends), member_of(slot, place)) end
  redis.call('PEXPIRE', key, math.ceil(lifetime(slot) / 1000) + 60000)
  verdict.used, verdict.free_at = verdict.used + cost, math.max(verdict.free_at, ends)
  return nil, now
end

local function refund(key, record, now, cost)
  local slot = string.sub(record, 49)
  for place = 1, slot == '' and 0 or cost do redis.call('ZREM', key, member_of(slot, place)) end
end
