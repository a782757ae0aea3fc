--[[
Leaky bucket as a queue: a token bucket whose callers wait their turn, so that they leave evenly.

record          limit: how many fit in, the one being served and those that wait behind it; a to f: as the token bucket
state           as the token bucket
promise         units leave period / limit apart (in whole microseconds, without drift); what does not fit is refused
]]
local fits, take, give, numbers = open('token_bucket', key, limit, period, a, b, c, d, e, f)

-- Served when all before it have been; let in when there is room behind them.
local function at(cost)
  local accepts = fits(cost)
  if not accepts then return nil end
  local _, _, idle = numbers()
  return idle > now and idle or now, accepts
end

-- The one before ends at an exact moment, and the turn begins at the microsecond after it: count on from the exact one.
local function take_turn(cost, moment, refused)
  local _, _, idle = numbers()
  take(cost, moment == idle and 0 or moment, refused)
end

return at, take_turn, give, numbers
