--[[
Notes that a process is alive, and tells how many are.

KEYS[1]         a sorted set: processes by the moment they were last heard of
ARGV[1]         the process; empty: only tell
ARGV[2]         seconds after which one that is not heard of is no more
returns         how many there are
]]

local seconds = redis.call('TIME')
local now, lifetime = tonumber(seconds[1]), tonumber(ARGV[2])
if ARGV[1] ~= '' then redis.call('ZADD', KEYS[1], now, ARGV[1]) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - lifetime)
redis.call('EXPIRE', KEYS[1], 2 * lifetime)
return redis.call('ZCARD', KEYS[1])
