--[[
Records that a process is alive, and returns all live processes if they have changed.

KEYS[1]  a sorted set: the processes, scored by the second of their last heartbeat
KEYS[2]  the version of this set: the moment of its last change
ARGV[1]  this process
ARGV[2]  the version that it knows
ARGV[3]  seconds without a heartbeat after which a process is removed
ARGV[4]  1 if this process ends; otherwise 0
returns  the version; and the processes, unless the version is the known one
]]
local time = redis.call('TIME')
local now, lifetime = tonumber(time[1]), tonumber(ARGV[3])

local changes = redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - lifetime)
-- After the clock was set back, these entries would outlive their processes. A live process adds itself again.
changes = changes + redis.call('ZREMRANGEBYSCORE', KEYS[1], now + lifetime / 2, '+inf')
if ARGV[4] == '1' then
  changes = changes + redis.call('ZREM', KEYS[1], ARGV[1])
else
  changes = changes + redis.call('ZADD', KEYS[1], now, ARGV[1])
  redis.call('EXPIRE', KEYS[1], 2 * lifetime)
end

local version = redis.call('GET', KEYS[2])
if changes > 0 or not version then version = time[1] .. '.' .. time[2] end
redis.call('SET', KEYS[2], version, 'EX', 2 * lifetime)
if version == ARGV[2] then return {version} end
return {version, redis.call('ZRANGE', KEYS[1], 0, -1)}
