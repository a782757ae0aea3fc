--[[
Notes which names count, as long as there is room for them, and which of these are to be kept in the database.

KEYS[1]         the names, each with the hour in which it counted last
KEYS[2]         those of them that are to be kept in the database, likewise
ARGV[1]         the hour by the process's clock; the server's, if that is later, is noted
ARGV[2]         for how many hours names are kept, by whichever of the two clocks is behind
ARGV[3]         how many names there may be
ARGV[4]         a name that there is always room for
ARGV[5]         how many of the names, the first ones, are to be kept in the database
ARGV[6..]       the names
returns         for each of them: 1: it is noted; 0: there is no room
]]

-- A process whose clock is wrong must not forget the names of others, nor be forgotten by them.
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
