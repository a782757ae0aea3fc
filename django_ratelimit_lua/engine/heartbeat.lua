--[[
Notes that a process is alive, and tells how many are, by weight, and where this one stands among them. What it costs
grows with the logarithm of the processes, and with the number of different weights.

The register begins anew where it was lost, or where nobody was heard of for half a lifetime: this server was away, or
its clock was set. Then others may be alive and not listed yet, until a lifetime later.

KEYS[1]         a sorted set: processes by the moment they were last heard of
KEYS[2]         a sorted set: the same processes by weight, those of one weight by name
KEYS[3]         when the register began: seconds, and microseconds
ARGV[1]         the process's name
ARGV[2]         its weight
ARGV[3]         seconds after which one that is not heard of is no more
ARGV[4]         1: the process says goodbye
returns         when the register began, 1 if that was a lifetime ago, how many processes are before this one (-1: it has
                said goodbye), and for each weight, the least first: as text, and how many have it
]]

local time = redis.call('TIME')
local now, lifetime = tonumber(time[1]), tonumber(ARGV[3])
local began, heard = redis.call('GET', KEYS[3]), redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]
local seconds = began and tonumber(string.match(began, '^(%d+) %d+$'))
if not seconds or seconds > now or not heard or math.abs(now - heard) >= lifetime / 2 then
  began, seconds = string.format('%d %d', now, time[2]), now
end
local gone = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - lifetime)
-- The clock was set back: these entries would last until it has caught up. A live process adds itself again.
for _, process in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], now + lifetime / 2, '+inf')) do
  gone[#gone + 1] = process
end
if ARGV[4] == '1' then gone[#gone + 1] = ARGV[1] end
for _, process in ipairs(gone) do
  redis.call('ZREM', KEYS[1], process)
  redis.call('ZREM', KEYS[2], process)
end
if ARGV[4] ~= '1' then
  redis.call('ZADD', KEYS[1], now, ARGV[1])
  redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
  if redis.call('ZCARD', KEYS[2]) > redis.call('ZCARD', KEYS[1]) then -- The first was evicted: all say so anew.
    redis.call('DEL', KEYS[2])
    redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
  end
  redis.call('SET', KEYS[3], began, 'EX', 2 * lifetime)
  redis.call('EXPIRE', KEYS[1], 2 * lifetime)
  redis.call('EXPIRE', KEYS[2], 2 * lifetime)
end
local answer = {began, now - seconds >= lifetime and 1 or 0, redis.call('ZRANK', KEYS[2], ARGV[1]) or -1}
local weight = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]
while weight do
  answer[#answer + 1] = weight
  answer[#answer + 1] = redis.call('ZCOUNT', KEYS[2], weight, weight)
  weight = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. weight, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
end
return answer
