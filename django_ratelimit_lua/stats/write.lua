--[[
Adds what one process has counted of one rule, or whatever else counts, exactly once however often it is sent.

KEYS[1]         the number of what this process has sent last
KEYS[2..]       what is written to
ARGV[1]         the number of this; nothing is done where KEYS[1] has it, or a later one
ARGV[2]         seconds that KEYS[1] is kept
ARGV[3]         how many members a sorted set may have before it is told
ARGV[4..]       for each further key: what is done, seconds that it is kept, how many words follow, and these:
                `add` (of a hash: field, number, ...), `people` (of a HyperLogLog: members),
                `marks` (of a sorted set: number, member, ...; the largest stays), `say` (of a hash: field, value, ...)
keeps           what is not of its kind, as somebody else has written it, is taken away; a command that is refused
                keeps back no other one
returns         the places in ARGV of what could not be written; as a negative number, each of KEYS that has more members
                than it may; and last, as text, why something could not be written; empty: all is written, or was before
]]

local told = redis.pcall('GET', KEYS[1])
if type(told) == 'string' and (tonumber(told) or 0) >= tonumber(ARGV[1]) then return {} end
-- First: where Redis writes nothing at all (no memory left, a replica), this fails as a whole, and is sent again.
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
local answer, problem = {}, nil

local function is_foreign(reply)
  return type(reply) == 'table' and reply.err
    and (string.find(reply.err, 'WRONGTYPE', 1, true) or string.find(reply.err, 'not an integer', 1, true)
      or string.find(reply.err, 'overflow', 1, true) or string.find(reply.err, 'INVALIDOBJ', 1, true))
end

local function write(place, command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if is_foreign(reply) then
    if command ~= 'HINCRBY' or is_foreign(redis.pcall('HDEL', key, (...))) then redis.pcall('DEL', key) end
    reply = redis.pcall(command, key, ...)
  end
  if type(reply) == 'table' and reply.err then
    answer[#answer + 1] = place
    problem = reply.err
  end
end

local at = 4
for number = 2, #KEYS do
  local key, what, seconds, last = KEYS[number], ARGV[at], ARGV[at + 1], at + 2 + ARGV[at + 2]
  at = at + 3
  if what == 'add' then
    for field = at, last, 2 do write(field, 'HINCRBY', key, ARGV[field], ARGV[field + 1]) end
  elseif what == 'people' then
    write(at, 'PFADD', key, unpack(ARGV, at, last))
  elseif what == 'marks' then
    write(at, 'ZADD', key, 'GT', unpack(ARGV, at, last))
    local members = redis.pcall('ZCARD', key)
    if type(members) == 'number' and members > tonumber(ARGV[3]) then answer[#answer + 1] = -number end
  else
    write(at, 'HSET', key, unpack(ARGV, at, last))
  end
  redis.pcall('EXPIRE', key, seconds)
  at = last + 1
end
answer[#answer + 1] = problem
return answer
