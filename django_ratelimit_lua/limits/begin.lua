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
  local most = 4000 -- at once: Lua's stack has 8000 places.
  local upto = subjects > most and most or subjects
  local written = rcall('HMGET', KEYS[count + 1], 'revision', unpack_args(ARGV, first, first + upto - 1))
  local current = written[1] or '0'
  if current ~= revision then return 'stale ' .. current .. token end
  for after = most, subjects - 1, most do
    upto = subjects - after > most and after + most or subjects
    local more = rcall('HMGET', KEYS[count + 1], unpack_args(ARGV, first + after, first + upto - 1))
    for i = 1, upto - after do written[after + i + 1] = more[i] end
  end
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
