--[[
Concurrency: a number of slots. Each is held by one caller until it is released or ends.

A slot is 20 bytes: 16 random bytes, and how many milliseconds it lasts after it is taken or renewed. A hit of several
units holds as many members: the slot itself, and the slot followed by a number of 4 bytes.

record          limit, period
                period: 0, because slots have none
                more: the slot to take or to release; without it, none is taken or released
state           a sorted set: member, a slot; score, when it ends
promise         never more than `limit` slots are held
]]
local units, shadow, count_denied, max_wait, limit, period = unpack('<dddddd', record)
-- cost
local slot, held, last = string.sub(record, 49), 0, now
local latest = redis.pcall('ZRANGE', key, -1, -1, 'WITHSCORES')
while latest[1] do
  if #latest[1] ~= 20 and #latest[1] ~= 24 then return nil, key, latest end
  if tonumber(latest[2]) <= now + unpack('>I4', latest[1], 17) * 1000 + 60000000 then break end
  -- Only a clock that was set back by more than a minute since can have given this end.
  rcall('ZREM', key, latest[1])
  latest = rcall('ZRANGE', key, -1, -1, 'WITHSCORES')
end
if latest.err then return nil, key, latest end
if latest[1] and tonumber(latest[2]) > now then
  last = tonumber(latest[2])
  held = rcall('ZCOUNT', key, string.format('(%.0f', now), '+inf')
end

if cost <= limit then
  moment = now
  local excess = held + cost - limit
  if excess > 0 then -- An estimate: slots may be released earlier, or renewed.
    moment = tonumber(rcall('ZRANGE', key, excess - held - 1, excess - held - 1, 'WITHSCORES')[2])
  end
  accepts = moment
end

-- verdict

if at and (op == 'charge' or #slot < 20) then
  at = 0 -- A slot without an id could not be released.
elseif at then
  if latest[1] then rcall('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', now)) end
  local ends = now + unpack('>I4', slot, 17) * 1000
  for place = 1, units do rcall('ZADD', key, ends, place == 1 and slot or slot .. pack('>I4', place)) end
  at, held, last, kept = now, held + units, math.max(last, ends), true
elseif op == 'refund' and #slot == 20 then
  for place = 1, math.min(units, 100000) do rcall('ZREM', key, place == 1 and slot or slot .. pack('>I4', place)) end
  held = rcall('ZCOUNT', key, string.format('(%.0f', now), '+inf')
  latest = rcall('ZRANGE', key, -1, -1, 'WITHSCORES')
  last = held > 0 and tonumber(latest[2]) or now
end

used, room = held, math.max(limit - held, 0)
idle_at = last
