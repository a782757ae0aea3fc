--[[
Writes a batch of what one process has counted of one name, exactly once however often it is sent.

KEYS[1]         the number of the last batch of this process
KEYS[2..]       what is written to
ARGV[1]         the number of this batch; nothing is done if KEYS[1] has it, or a later one
ARGV[2]         seconds that KEYS[1] is kept
ARGV[3]         the size of the sample in a sorted set
ARGV[4..]       for each further key: what is done, seconds that it is kept, how many words follow, and these:
                `add` (to a hash: field, number, ...), `say` (in a hash: field, value, ...),
                `meet` (a HyperLogLog: member, ...), `mark` (a sorted set: number, member, ...; the largest stays, and
                if there are half as many again as the sample and one more, those with the largest members are removed)
keeps           a command that fails keeps back no other one
returns         why something could not be written, if so
]]

local known = redis.pcall('GET', KEYS[1])
if type(known) == 'string' and (tonumber(known) or 0) >= tonumber(ARGV[1]) then return {} end
-- First: where Redis writes nothing at all (no memory left, a replica), this fails as a whole, and is sent again.
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
local problems = {}

local function write(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if type(reply) == 'table' and reply.err then problems[1] = reply.err end
end

local function trim(key, size)
  local count = redis.pcall('ZCARD', key)
  if type(count) ~= 'number' or count <= size * 1.5 then return end
  local members = redis.pcall('ZRANGE', key, 0, -1)
  table.sort(members)
  -- One more stays, which shows that there were others.
  for first = size + 2, #members, 1000 do
    write('ZREM', key, unpack(members, first, math.min(first + 999, #members)))
  end
end

local at = 4
for number = 2, #KEYS do
  local key, what, seconds, last = KEYS[number], ARGV[at], ARGV[at + 1], at + 2 + ARGV[at + 2]
  at = at + 3
  for first = at, last, 1000 do -- More than some thousand words do not fit on Lua's stack.
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
