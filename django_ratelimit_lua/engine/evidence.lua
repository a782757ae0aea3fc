--[[
Adds offences to the evidence of a ban, or of what may become one: those of the last moments are kept, as many as fit.

KEYS[i]         the evidence of one identity under one limit: a hash, of each offence its moment and a number → what it was
ARGV[1]         how many offences are kept at most
ARGV[2]         how many bytes their names and texts have together at most
ARGV[2 + i]     for how many milliseconds it is kept, at least, and how many offences: two doubles; then for each offence
                the length of its name and of its text, as integers of 2 bytes, and both
returns         for each key 1
]]
local rcall, unpack = redis.call, struct.unpack
local most, most_bytes, answers = tonumber(ARGV[1]), tonumber(ARGV[2]), {}
for i, key in ipairs(KEYS) do
  local record, at = ARGV[2 + i], 17
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
  local kept, bytes = 0, 0
  for place = #names, 1, -1 do
    local name = names[place]
    kept, bytes = kept + 1, bytes + #name + #(rcall('HGET', key, name) or '')
    if kept > most or bytes > most_bytes then rcall('HDEL', key, name) end
  end
  if rcall('PTTL', key) < lasts then rcall('PEXPIRE', key, string.format('%.0f', lasts)) end
  answers[i] = 1
end
return answers
