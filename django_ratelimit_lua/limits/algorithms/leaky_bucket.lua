--[[
Leaky bucket as a queue: a token bucket whose callers wait their turn, so that they leave evenly.

A turn that is given back while others wait behind it is a hole: they have been told their turns, and keep them. Once all
turns behind a hole are given back as well, the next one gets the hole's.

record          limit: how many fit in, the one being served and those that wait behind it; a to f: as the token bucket;
                more: not empty where any number may wait
state           as the token bucket; in the place of its runs, for each hole its beginning, its end, and 0
promise         units leave period / limit apart (in whole microseconds, without drift); what does not fit is refused
]]
local fits, take, give_latest, numbers, time, kept, began, due_at = open(
  'token_bucket', key, limit, period, a, b, c, d, e, f, 'holes')

-- Served when all before it have been; let in when there is room behind them.
local function at(cost)
  local accepts = fits(cost)
  if not accepts then return nil end
  local _, _, idle = numbers()
  return idle > now and idle or now, more == '' and accepts or now
end

-- The holes, but for those that are over.
local function holes()
  local found = {}
  local states = kept()
  for offset = 1, #states, 24 do
    local from, to = unpack('<dd', states, offset)
    if to > time then found[#found + 1] = {from, to} end
  end
  return found
end

local function keep(found)
  local states = {}
  for i, hole in ipairs(found) do states[i] = pack('<ddd', hole[1], hole[2], 0) end
  kept(table.concat(states))
end

-- Holes that touch are one. What is more than so many is forgotten: those turns stay taken.
local function add(from, to)
  local found = {}
  for _, hole in ipairs(holes()) do
    if from <= hole[2] and hole[2] <= from + 1 then
      from = hole[1]
    elseif hole[1] <= to and to <= hole[1] + 1 then
      to = hole[2]
    else
      found[#found + 1] = hole
    end
  end
  if #found < 16 then found[#found + 1] = {from, to} end
  keep(found)
end

-- The one before ends at an exact moment, and the turn begins at the microsecond after it: count on from the exact one.
local function take_turn(cost, moment, refused)
  local _, _, idle = numbers()
  if moment < time then moment = time end
  if moment == idle then
    take(cost, 0, refused)
  else
    -- Another limit lets it go later only.
    if moment > idle and moment > time then add(idle > time and idle or time, moment) end
    take(cost, moment, refused)
  end
  return moment > idle and moment or idle
end

-- The last turn is free again, and then so are the holes before it.
local give = op == 'refund' and function(cost)
  local _, _, idle = numbers()
  if given_at and began(cost) ~= given_at then
    local span = cost * c + floor((cost * d + a - 1) / a)
    if c > 1 and given_at + span > time and given_at + span < idle then add(given_at, given_at + span) end
    return due_at()
  end
  give_latest(cost)
  local found, is_met = holes(), true
  while is_met do
    is_met = false
    _, _, idle = numbers()
    for place, hole in ipairs(found) do
      if hole[1] < idle and idle <= hole[2] then
        table.remove(found, place)
        due_at(hole[1] > time and hole[1] or time)
        is_met = true
        break
      end
    end
  end
  keep(found)
  due_at()
end

return at, take_turn, give, numbers
