--[[
A bucket of `burst` units that refills at a steady rate: the generic cell rate algorithm of ITU-T I.371. A hit that waits takes its
units in advance: until it leaves, the bucket owes more than it holds.

record   see bucket.lua
state    see bucket.lua
promise  at most burst + x * tokens / interval units leave in any x moments; with debts, the cost of the last hit in addition
]]
local function check(key, record, now, cost)
  local max_wait, burst, tokens, interval, unit = struct.unpack('<ddddd', record, 33)
  local debt = read_debt(key, now, burst, tokens, interval, unit)
  -- With `debt`, any cost is accepted if the bucket owes at most `burst` units.
  if ARGV[4] == 'debt' and burst > 0 then cost = 0 end
  local accepts, leaves, excess = now, now, debt + (cost - burst) * interval
  if cost > burst then
    accepts = math.huge
  elseif excess > 0 then
    leaves = paid_at(now, excess, tokens, unit)
    if max_wait >= 0 then accepts = math.max(leaves - max_wait, now) end
  end
  return {accepts = accepts, leaves = leaves, used = debt / interval, free_at = paid_at(now, debt, tokens, unit), debt = debt}
end

local function take(key, record, now, cost, limit, at)
  local tokens, interval, unit = struct.unpack('<ddd', record, 49)
  local debt = limit.debt
  -- A bucket that is full before the hit leaves gains nothing more until then.
  if at > now then debt = math.max(debt, math.ceil((at - now + now % unit) / unit) * tokens) end
  return pack_debt(limit, record, now, math.min(debt + cost * interval, 9007199254740991)), at
end

local function refund(key, record, now, cost, limit)
  local interval = struct.unpack('<d', record, 57)
  return pack_debt(limit, record, now, math.max(limit.debt - cost * interval, 0))
end
