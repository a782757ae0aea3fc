--[[
A bucket of `burst` units that refills at a steady rate: the generic cell rate algorithm of ITU-T I.371. A hit that waits takes its
units in advance: until it goes, the bucket owes more than it holds.

record   see bucket.lua
state    see bucket.lua
promise  at most burst + x * parts_per_moment / parts_per_unit units go in any x moments, what was refunded, and the cost of one debt
]]
local function check(key, record, now, cost)
  local max_wait, burst, parts_per_moment, parts_per_unit, moment_us = struct.unpack('<ddddd', record, 33)
  local debt = read_debt(key, now, burst, parts_per_moment, parts_per_unit, moment_us)
  -- A hit that may stay owed is accepted if the bucket owes no more than it holds.
  if ARGV[4] == 'debt' and burst > 0 then cost = 0 end
  local accepted_from, goes_at, excess = now, now, debt + (cost - burst) * parts_per_unit
  if cost > burst then
    accepted_from = math.huge
  elseif excess > 0 then
    goes_at = paid_at(now, excess, parts_per_moment, moment_us)
    if max_wait >= 0 then accepted_from = math.max(goes_at - max_wait, now) end
  end
  local free_at = paid_at(now, debt, parts_per_moment, moment_us)
  return {accepted_from = accepted_from, goes_at = goes_at, used = debt / parts_per_unit, free_at = free_at, debt = debt}
end

local function take(key, record, now, cost, verdict, goes_at)
  local parts_per_moment, parts_per_unit, moment_us = struct.unpack('<ddd', record, 49)
  local debt = verdict.debt
  -- Another limit may let the hit go later. What the bucket gains until then is lost if that fills it.
  if goes_at > now then debt = math.max(debt, math.ceil((goes_at - now + now % moment_us) / moment_us) * parts_per_moment) end
  return settle(verdict, record, now, math.min(debt + cost * parts_per_unit, 9007199254740991)), goes_at
end

local function refund(key, record, now, cost, verdict)
  local parts_per_unit = struct.unpack('<d', record, 57)
  return settle(verdict, record, now, math.max(verdict.debt - cost * parts_per_unit, 0))
end
