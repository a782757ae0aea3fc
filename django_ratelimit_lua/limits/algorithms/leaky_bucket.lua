--[[
A queue that calls leave at even intervals: a bucket in which a call waits until all before it have left. Its burst is the number of
calls that find room: the one being served and those behind it.

record   see bucket.lua
state    see bucket.lua
promise  calls leave parts_per_unit / parts_per_moment moments apart, unless another limit makes one of them wait longer; a call that
         finds no room is refused
]]
local function check(key, record, now, cost)
  local max_wait, burst, parts_per_moment, parts_per_unit, moment_us = struct.unpack('<ddddd', record, 33)
  local debt = read_debt(key, now, burst, parts_per_moment, parts_per_unit, moment_us)
  local free_at, accepted_from = paid_at(now, debt, parts_per_moment, moment_us), math.huge
  if cost <= burst then
    accepted_from = paid_at(now, debt + (cost - burst) * parts_per_unit, parts_per_moment, moment_us)
    if max_wait >= 0 then accepted_from = math.max(accepted_from, free_at - max_wait) end
  end
  local goes_at = cost <= burst and free_at or now
  return {accepted_from = accepted_from, goes_at = goes_at, used = debt / parts_per_unit, free_at = free_at, debt = debt}
end

local function take(key, record, now, cost, verdict, goes_at)
  local parts_per_moment, parts_per_unit, moment_us = struct.unpack('<ddd', record, 49)
  local debt, turn = verdict.debt, math.max(goes_at, verdict.free_at)
  if goes_at > verdict.free_at then debt = math.ceil((goes_at - now + now % moment_us) / moment_us) * parts_per_moment end
  return settle(verdict, record, now, math.min(debt + cost * parts_per_unit, 9007199254740991)), turn
end

-- Only the last turn can be given back, because the calls behind any other have been promised theirs.
local function refund(key, record, now, cost, verdict, turn)
  local parts_per_moment, parts_per_unit, moment_us = struct.unpack('<ddd', record, 49)
  local debt = verdict.debt - cost * parts_per_unit
  if turn ~= '' and now - now % moment_us + math.ceil(debt / parts_per_moment) * moment_us ~= tonumber(turn) then return nil end
  return settle(verdict, record, now, math.max(debt, 0))
end
