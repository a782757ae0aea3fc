--[[
Adds offences to the evidence of a ban, or of what may become one: those of the last ten moments are kept.

KEYS[i]         the evidence of one identity under one limit: a hash, of each offence its moment and a number → what it was
ARGV[1]         how many offences are kept
ARGV[1 + i]     for how many milliseconds it is kept, at least, and how many offences: two doubles; then for each offence
                the length of its name and of its text, as integers of 2 bytes, and both
returns         for each key 1
]]
local rcall, unpack = redis.call, struct.unpack
local most, answers = tonumber(ARGV[1]), {}
for i, key in ipairs(KEYS) do
  local record, at = ARGV[1 + i], 17
  local lasts, count = unpack('<dd', record)
  if rcall('TYPE', key).ok ~= 'hash' then rcall('DEL', key) end
  for _ = 1, count do
    local name, text = unpack('<HH', record, at)
    at = at + 4
    rcall('HSET', key, string.sub(record, at, at + name - 1), string.sub(record, at + name, at + name + text - 1))
    at = at + name + text
  end
  local names = rcall('HKEYS', key)
  table.sort(names)
  for place = 1, #names - most do rcall('HDEL', key, names[place]) end
  if rcall('PTTL', key) < lasts then rcall('PEXPIRE', key, string.format('%.0f', lasts)) end
  answers[i] = 1
end
return answers
