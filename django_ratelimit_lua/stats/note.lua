--[[
Notes which names count, as long as there is room for them, and gives them places of their own in metrics, as long as
there are some. Who has a place keeps it while the name is used: totals of a metric must never fall. Notes as well which
of those that are noted are to be kept in the database.

KEYS[1]         the names, each with the hour in which it counted last
KEYS[2]         those of them that have places, likewise
KEYS[3]         those of them that are to be kept in the database, likewise
ARGV[1]         the hour by the process's clock; the server's, if that is later, is noted
ARGV[2]         for how many hours names are kept, by whichever of the two clocks is behind
ARGV[3]         how many names there may be
ARGV[4]         how many places there are
ARGV[5]         a name that there is always room for, and that needs no place
ARGV[6]         how many of the names, the first ones, are to be kept in the database
ARGV[7..]       the names
returns         for each of them: 2: it has a place; 1: it is noted; 0: there is no room
]]

-- A process whose clock is wrong must not forget the names of others, nor be forgotten by them.
local time = redis.pcall('TIME')
local own = tonumber(ARGV[1])
local hour = time.err and own or math.floor(time[1] / 3600)
local since = math.min(own, hour) - ARGV[2]
hour = math.max(own, hour)

for number = 1, 3 do
  local reply = redis.pcall('ZREMRANGEBYSCORE', KEYS[number], '-inf', '(' .. since)
  if type(reply) == 'table' and reply.err then
    if not string.find(reply.err, 'WRONGTYPE', 1, true) then return reply end
    redis.call('DEL', KEYS[number]) -- Somebody else has written it.
  end
end
local function has_room(key, name, most)
  return redis.call('ZSCORE', key, name) or redis.call('ZCARD', key) < tonumber(most)
end

local noted = {}
for number = 7, #ARGV do
  local name = ARGV[number]
  local is_there = name == ARGV[5] or has_room(KEYS[1], name, ARGV[3])
  if not is_there then name = ARGV[5] end
  redis.call('ZADD', KEYS[1], 'GT', hour, name)
  local has_place = name ~= ARGV[5] and has_room(KEYS[2], name, ARGV[4])
  if has_place then redis.call('ZADD', KEYS[2], 'GT', hour, name) end
  if number <= 6 + tonumber(ARGV[6]) and name ~= ARGV[5] then redis.call('ZADD', KEYS[3], 'GT', hour, name) end
  noted[#noted + 1] = has_place and 2 or is_there and 1 or 0
end
-- Older versions have noted names that are counted as one: first goes what counted least lately.
if redis.call('ZCARD', KEYS[3]) > tonumber(ARGV[3]) then
  redis.call('ZREMRANGEBYRANK', KEYS[3], 0, -1 - tonumber(ARGV[3]))
end
return noted
