--[[
What every program begins with: the names that all use, the fence, and the time. KEYS and ARGV are those of program.lua.
]]
local unpack_args = unpack
local revision, clock, token = ARGV[2], ARGV[3], ARGV[#ARGV]
local rcall, pack, unpack, floor = redis.call, struct.pack, struct.unpack, math.floor
local now, slack, count = 0, 0, #KEYS

if revision ~= '' then
  count = count - 1
  local first = 5 + 2 * count
  local subjects = (#ARGV - first) / 2
  local written = rcall('HMGET', KEYS[count + 1], 'revision', unpack_args(ARGV, first, first + subjects - 1))
  local current = written[1] or '0'
  if current ~= revision then return 'stale ' .. current .. token end
  for i = 1, subjects do
    if string.sub(written[i + 1] or '', 1, 16) ~= ARGV[first + subjects - 1 + i] then
      table.remove(written, 1)
      written[subjects + 1] = token
      return written
    end
  end
end

if clock == '' then
  local seconds = rcall('TIME')
  now = seconds[1] * 1000000 + seconds[2]
else
  -- Nobody promises that a caller's clock and the expiry clock agree: keep the state a minute longer, or as it says.
  now, slack = tonumber(clock), 60000000
  if not now then
    local moment, longer = string.match(clock, '^(%d+) (%d+)$')
    now, slack = tonumber(moment), tonumber(longer)
  end
end
