--[[
Puts the list of a process that ends together with those of others that have ended.

KEYS[1]         the lists of one rule and hour, by process
ARGV[1]         the field of those that have ended
ARGV[2]         what was read there; empty: nothing was
ARGV[3]         both together
ARGV[4]         the field of the process
returns         0: somebody else has written there since it was read; 1: it is done, or was done before
]]

if (redis.call('HGET', KEYS[1], ARGV[1]) or '') ~= ARGV[2] then return 0 end
if redis.call('HDEL', KEYS[1], ARGV[4]) == 1 then redis.call('HSET', KEYS[1], ARGV[1], ARGV[3]) end
return 1
