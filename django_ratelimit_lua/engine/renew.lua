--[[
What is done to slots that a process holds, whatever their limits: they are renewed, so that each ends so much later,
taken again, or released; or only looked at, which changes nothing.

KEYS[i]         the slots of a limit, as limits/algorithms/concurrency.lua keeps them; once for each slot
ARGV[1]         the time in microseconds; empty: this server's own clock
ARGV[2]         what to do: renew, retake (those that have ended, where there is room for them), release or look
ARGV[2 + i]     which: the limit and how many units it holds, as two doubles, and the slot
returns         for each slot 1: it is held (of one that was released: it was), 2: it was taken again, 0: it is not held
]]
local rcall, pack, unpack = redis.call, struct.pack, struct.unpack
local what, now = ARGV[2], tonumber(ARGV[1])
if not now then
  local seconds = rcall('TIME')
  now = seconds[1] * 1000000 + seconds[2]
end

local function act(key, limit, units, slot)
  local members = {slot}
  for i = 2, units do members[i] = slot .. pack('>I4', i) end
  local score = redis.pcall('ZSCORE', key, slot)
  if type(score) == 'table' then return 0 end -- A key of another type, which whoever takes a slot next clears.
  local is_held = score and tonumber(score) > now
  if what == 'release' then
    for _, member in ipairs(members) do rcall('ZREM', key, member) end
    return is_held and 1 or 0
  end
  if what == 'look' then return is_held and 1 or 0 end
  if not is_held then
    if what ~= 'retake' then return 0 end
    rcall('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', now))
    if rcall('ZCARD', key) + units > limit then return 0 end
  end
  local lasts = unpack('>I4', slot, 17)
  local deadline, lifetime = now + lasts * 1000, lasts + 60000
  for _, member in ipairs(members) do rcall('ZADD', key, deadline, member) end
  -- Garbage collection, by the server's own clock; no shorter than for another slot that lasts longer.
  if rcall('PTTL', key) < lifetime then rcall('PEXPIRE', key, lifetime) end
  return is_held and 1 or 2
end

local answers = {}
for i, key in ipairs(KEYS) do
  local limit, units = unpack('<dd', ARGV[2 + i])
  answers[i] = act(key, limit, units, string.sub(ARGV[2 + i], 17))
end
return answers
