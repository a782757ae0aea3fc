--[[
Records which names were counted, as far as there is room, and which of them are stored in the database.

KEYS[1]     a sorted set: names, scored by the hour in which each was last counted
KEYS[2]     the same for the names that are stored in the database
ARGV[1]     the hour by the clock of the process; the server's hour is recorded if it is later
ARGV[2]     the hours for which a name is kept, by the earlier of the two clocks
ARGV[3]     the maximum number of names
ARGV[4]     a name that is always recorded, and stands for those without room
ARGV[5]     how many of the names, from the first, are stored in the database
ARGV[6..]   the names
returns     for each name: 1 if it was recorded, 0 if there was no room
]]

-- A process with a wrong clock must not remove the names of others, and others must not remove its names.
local own = tonumber(ARGV[1])
local hour = math.floor(redis.call('TIME')[1] / 3600)
local since = math.min(own, hour) - ARGV[2]
hour = math.max(own, hour)

for number = 1, 2 do
  redis.call('ZREMRANGEBYSCORE', KEYS[number], '-inf', '(' .. since)
end

local noted = {}
for number = 6, #ARGV do
  local name = ARGV[number]
  local has_room = name == ARGV[4] or redis.call('ZSCORE', KEYS[1], name)
    or redis.call('ZCARD', KEYS[1]) < tonumber(ARGV[3])
  redis.call('ZADD', KEYS[1], 'GT', hour, has_room and name or ARGV[4])
  if has_room and number <= 5 + tonumber(ARGV[5]) then redis.call('ZADD', KEYS[2], 'GT', hour, name) end
  noted[#noted + 1] = has_room and 1 or 0
end
return noted
