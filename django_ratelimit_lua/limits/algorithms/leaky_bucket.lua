--[[
A queue that calls leave at even intervals: a bucket in which a call waits until all before it have left. Its burst is the number of
calls that find room: the one being served and those behind it.

record   see bucket.lua
state    see bucket.lua
promise  calls leave interval / tokens moments apart, unless another limit makes one of them wait longer; without room, it is refused
]]
local function check(key, record, now, cost)
  local max_wait, burst, tokens, interval, unit = struct.unpack('<ddddd', record, 33)
  local debt = read_debt(key, now, burst, tokens, interval, unit)
  local free_at, accepts = paid_at(now, debt, tokens, unit), math.huge
  if cost <= burst then
    accepts = paid_at(now, debt + (cost - burst) * interval, tokens, unit)
    if max_wait >= 0 then accepts = math.max(accepts, free_at - max_wait) end
  end
  return {accepts = accepts, leaves = cost <= burst and free_at or now, used = debt / interval, free_at = free_at, debt = debt}
end

local function take(key, record, now, cost, limit, at)
  local tokens, interval, unit = struct.unpack('<ddd', record, 49)
  local debt, turn = limit.debt, math.max(at, limit.free_at)
  if at > limit.free_at then debt = math.ceil((at - now + now % unit) / unit) * tokens end
  return pack_debt(limit, record, now, math.min(debt + cost * interval, 9007199254740991)), turn
end

-- Only the last turn can be given back, because later calls were promised their turns.
local function refund(key, record, now, cost, limit, turn)
  local tokens, interval, unit = struct.unpack('<ddd', record, 49)
  local debt = limit.debt - cost * interval
  if turn ~= '' and now - now % unit + math.ceil(debt / tokens) * unit ~= tonumber(turn) then return nil end
  return pack_debt(limit, record, now, math.max(debt, 0))
end
