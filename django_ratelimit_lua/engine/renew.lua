--[[
Renews the slots that a process holds, so that each lasts as long as if it was taken now.

KEYS[i]     the slots of a limit, as limits/algorithms/concurrency.lua stores them; one key for each slot
ARGV[1]     the time in microseconds; empty: this server's time
ARGV[1+i]   the id of a slot, and in 4 bytes its number of units
returns     for each slot: 1 if it is held, 0 if it has ended
]]
local unpack = struct.unpack
local now = tonumber(ARGV[1])
if not now then
  local seconds = redis.call('TIME')
  now = seconds[1] * 1000000 + seconds[2]
end

local function renew(key, slot, units)
  local ends = redis.pcall('ZSCORE', key, slot)
  -- A key of another type returns an error, and holds no slot.
  if type(ends) ~= 'string' or tonumber(ends) <= now then return 0 end
  local milliseconds = unpack('>I4', slot, 17)
  for place = 1, units do
    redis.call('ZADD', key, now + milliseconds * 1000, place == 1 and slot or slot .. struct.pack('>I4', place))
  end
  -- Redis expires keys by its own clock, which may differ from `now`.
  if redis.call('PTTL', key) < milliseconds + 60000 then redis.call('PEXPIRE', key, milliseconds + 60000) end
  return 1
end

local answers = {}
for i, key in ipairs(KEYS) do
  answers[i] = renew(key, string.sub(ARGV[1 + i], 1, 20), unpack('>I4', ARGV[1 + i], 21))
end
return answers
