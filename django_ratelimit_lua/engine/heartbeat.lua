--[[
Records that a process is alive, in one register or several, and returns its position in each. The cost grows with the logarithm of the
number of processes, and with the number of registers.

KEYS[2n-1]  a sorted set: the name of each process, scored by the second of its last heartbeat
KEYS[2n]    a sorted set: the same names in alphabetical order
KEYS[#KEYS] a hash: the description of each process of the first register
ARGV[1]     the name of this process
ARGV[2]     its description
ARGV[3]     seconds without a heartbeat after which a process is removed
ARGV[3+n]   for each register: 1, or 0 to leave it
returns     for each register: the number of its processes, and how many of them come before this one
]]

local clock, lifetime, descriptions = table.concat(redis.call('TIME'), ' '), tonumber(ARGV[3]), KEYS[#KEYS]
local now = tonumber(string.match(clock, '^(%d+) %d+$'))

local function beat(alive, names, own)
  local gone = redis.call('ZRANGEBYSCORE', alive, '-inf', now - lifetime)
  -- If the clock was set back, these entries would last until it has caught up. A live process adds itself again.
  for _, process in ipairs(redis.call('ZRANGEBYSCORE', alive, now + lifetime / 2, '+inf')) do
    gone[#gone + 1] = process
  end
  if own == '0' then gone[#gone + 1] = ARGV[1] end
  for _, process in ipairs(gone) do
    redis.call('ZREM', alive, process)
    redis.call('ZREM', names, process)
    if alive == KEYS[1] then redis.call('HDEL', descriptions, process) end
  end
  if own ~= '0' then
    redis.call('ZADD', alive, now, ARGV[1])
    redis.call('ZADD', names, 0, ARGV[1])
    if redis.call('ZCARD', names) > redis.call('ZCARD', alive) then -- `alive` was evicted, so each process registers again.
      redis.call('DEL', names)
      redis.call('ZADD', names, 0, ARGV[1])
    end
    redis.call('EXPIRE', alive, 2 * lifetime)
    redis.call('EXPIRE', names, 2 * lifetime)
  end
  return {redis.call('ZCARD', names), redis.call('ZRANK', names, ARGV[1]) or 0}
end

local answers = {}
for n = 1, #ARGV - 3 do
  answers[n] = beat(KEYS[2 * n - 1], KEYS[2 * n], ARGV[3 + n])
end
if ARGV[4] ~= '0' then
  redis.call('HSET', descriptions, ARGV[1], ARGV[2])
  redis.call('EXPIRE', descriptions, 2 * lifetime)
end
return answers
