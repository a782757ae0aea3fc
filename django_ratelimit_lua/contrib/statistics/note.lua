--[[
Records which names were counted, as far as there is room.

KEYS[1]     a sorted set: names, scored by the hour in which each was last counted
ARGV[1]     the hour by the clock of the process; the server's hour is recorded if it is later
ARGV[2]     the hours for which a name is kept, by the earlier of the two clocks
ARGV[3]     the maximum number of names
ARGV[4]     a name that is always recorded, and stands for those without room
ARGV[5..]   the names
returns     for each name: 1 if it was recorded, 0 if there was no room
]]

-- A process with a wrong clock must not remove the names of others, and others must not remove its names.
local own = tonumber(ARGV[1])
local hour = math.floor(redis.call('TIME')[1] / 3600)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. math.min(own, hour) - ARGV[2])

local noted = {}
for number = 5, #ARGV do
  local name = ARGV[number]
  local has_room = name == ARGV[4] or redis.call('ZSCORE', KEYS[1], name)
    or redis.call('ZCARD', KEYS[1]) < tonumber(ARGV[3])
  redis.call('ZADD', KEYS[1], 'GT', math.max(own, hour), has_room and name or ARGV[4])
  noted[#noted + 1] = has_room and 1 or 0
end
return noted
