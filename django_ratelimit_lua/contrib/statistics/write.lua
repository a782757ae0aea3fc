--[[
Writes a batch of counts that a process has collected about one name. A batch that is sent twice is written once.

KEYS[1]     the number of the last batch of this process
KEYS[2..]   the keys to write
ARGV[1]     the number of this batch; nothing is written if KEYS[1] has it, or a later one
ARGV[2]     the seconds for which KEYS[1] is kept
ARGV[3]     the size of the sample in a sorted set
ARGV[4..]   for each key: an operation, the seconds for which the key is kept, the number of arguments, and these. Operations: `add`
            (hash: field, increment, ...), `say` (hash: field, value, ...), `meet` (HyperLogLog: member, ...), `mark` (sorted set: score,
            member, ...; see `trim`)
returns     the last error, if any. A command that fails stops no other
]]

local known = redis.pcall('GET', KEYS[1])
if type(known) == 'string' and (tonumber(known) or 0) >= tonumber(ARGV[1]) then return {} end
-- This write comes first. If Redis accepts no writes (no memory left, a replica), the script fails here, and the batch is sent again.
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
local problems = {}

local function write(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then problems[1] = reply.err end
end

-- A set with more than 1.5 times the size of the sample is reduced to the members that come first in alphabetical order.
local function trim(key, size)
  local count = redis.pcall('ZCARD', key)
  if type(count) ~= 'number' or count <= size * 1.5 then return end
  local members = redis.pcall('ZRANGE', key, 0, -1)
  table.sort(members)
  -- One more than the sample is kept, as a sign that the set was reduced.
  for first = size + 2, #members, 1000 do
    write('ZREM', key, unpack(members, first, math.min(first + 999, #members)))
  end
end

local at = 4
for number = 2, #KEYS do
  local key, what, seconds, last = KEYS[number], ARGV[at], ARGV[at + 1], at + 2 + ARGV[at + 2]
  at = at + 3
  for first = at, last, 1000 do -- Lua's stack holds a few thousand arguments.
    local till = math.min(first + 999, last)
    if what == 'add' then
      for field = first, till, 2 do write('HINCRBY', key, ARGV[field], ARGV[field + 1]) end
    elseif what == 'meet' then
      write('PFADD', key, unpack(ARGV, first, till))
    elseif what == 'mark' then
      write('ZADD', key, 'GT', unpack(ARGV, first, till))
    else
      write('HSET', key, unpack(ARGV, first, till))
    end
  end
  if what == 'mark' then trim(key, tonumber(ARGV[3])) end
  redis.pcall('EXPIRE', key, seconds)
  at = last + 1
end
return problems
