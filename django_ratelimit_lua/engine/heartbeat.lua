--[[
Notes that a process is alive, and tells how many are, and where this one stands among them.

KEYS[1]         a sorted set: processes by the moment they were last heard of
ARGV[1]         the process, as its weight, a colon and its name; empty: only tell
ARGV[2]         seconds after which one that is not heard of is no more
ARGV[3]         1: the process says goodbye
returns         how many there are, and how many of them are before this one by name; and as text, the weights of those
                before it, its own, and that of all
]]

local seconds = redis.call('TIME')
local now, lifetime = tonumber(seconds[1]), tonumber(ARGV[2])
if ARGV[3] == '1' then
  redis.call('ZREM', KEYS[1], ARGV[1])
elseif ARGV[1] ~= '' then
  redis.call('ZADD', KEYS[1], now, ARGV[1])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - lifetime)
redis.call('EXPIRE', KEYS[1], 2 * lifetime)
local alive = redis.call('ZRANGE', KEYS[1], 0, -1)
table.sort(alive)
local rank, before, own, all = 0, 0, 0, 0
for _, one in ipairs(alive) do
  local weight = tonumber(string.match(one, '^[^:]+')) or 1
  if one == ARGV[1] then own = weight elseif own == 0 then rank, before = rank + 1, before + weight end
  all = all + weight
end
return {#alive, rank, string.format('%.17g', before), string.format('%.17g', own), string.format('%.17g', all)}
