--[[
Writes a batch of counts that a process has collected about one name. A batch that is sent twice is written once.

KEYS[1]     the number of the last batch of this process
KEYS[2..]   the keys to write
ARGV[1]     the number of this batch; nothing is written if KEYS[1] has it, or a later one
ARGV[2]     the seconds for which KEYS[1] is kept
ARGV[3..]   for each key: an operation, the seconds for which the key is kept, the number of arguments, and these. Operations:
            `increment` (hash: field, number, ...), `set` (hash: field, value, ...), `observe` (HyperLogLog: member, ...)
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

local at = 3
for number = 2, #KEYS do
  local key, operation, seconds, last = KEYS[number], ARGV[at], ARGV[at + 1], at + 2 + ARGV[at + 2]
  for first = at + 3, last, 1000 do -- Lua's stack holds a few thousand arguments.
    local till = math.min(first + 999, last)
    if operation == 'increment' then
      for field = first, till, 2 do write('HINCRBY', key, ARGV[field], ARGV[field + 1]) end
    elseif operation == 'observe' then
      write('PFADD', key, unpack(ARGV, first, till))
    else
      write('HSET', key, unpack(ARGV, first, till))
    end
  end
  redis.pcall('EXPIRE', key, seconds)
  at = last + 1
end
return problems
