--[[
Notes that a process is alive, in one register of processes or several. For each, tells how many there are, and where
this one stands among them. What it costs grows with the logarithm of the processes, and with the number of registers.

KEYS[2n-1]      a sorted set: processes by the moment they were last heard of
KEYS[2n]        a sorted set: the same processes by name
KEYS[#KEYS]     a hash: how each process of the first register describes itself
ARGV[1]         the process's name
ARGV[2]         how it describes itself
ARGV[3]         seconds after which one that is not heard of is no more
ARGV[3+n]       for each register 1, or 0: it leaves the register
returns         for each register: how many processes there are, and how many of them come before this one
]]

local clock, lifetime, descriptions = table.concat(redis.call('TIME'), ' '), tonumber(ARGV[3]), KEYS[#KEYS]
local now = tonumber(string.match(clock, '^(%d+) %d+$'))

local function beat(alive, names, own)
  local gone = redis.call('ZRANGEBYSCORE', alive, '-inf', now - lifetime)
  -- The clock was set back: these entries would last until it has caught up. A live process adds itself again.
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
    if redis.call('ZCARD', names) > redis.call('ZCARD', alive) then -- The first was evicted: all say so anew.
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
