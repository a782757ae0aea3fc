--[[
Leaky bucket as a queue: a token bucket whose callers wait their turn, so that they leave evenly.

A turn that is given back while others wait behind it is a hole: they have been told their turns, and keep them. Once all
turns behind a hole are given back as well, the next one gets the hole's.

record          limit, period, tokens, micros, step, step_part, full, full_part
                limit: how many fit in, the one being served and those that wait behind it; the others as the token bucket;
                more: not empty where any number may wait
state           as the token bucket; in the place of the other hits and the past, for each hole its beginning and its end (7 bytes each)
promise         units leave period / limit apart (in whole microseconds, without drift); what does not fit is refused
]]
local tokens, micros, step, step_part, full, full_part = a, b, c, d, e, f
local fits, charge_bucket, refund_latest, report, time, saved_holes, begins_at, due_at = open(
  'token_bucket', key, limit, period, tokens, micros, step, step_part, full, full_part, 'holes')

-- Served when all before it have been; let in when there is room behind them.
local function when_allowed(cost)
  local accepts = fits(cost)
  if not accepts then return nil end
  local _, _, idle_at = report()
  return idle_at > now and idle_at or now, more == '' and accepts or now
end

-- The holes, but for those that are over.
local function load_holes()
  local holes, states = {}, saved_holes()
  for offset = 1, #states, 14 do
    local from, to = unpack('<I7I7', states, offset)
    if to > time then holes[#holes + 1] = {from, to} end
  end
  return holes
end

local function save_holes(holes)
  local states = {}
  for i, hole in ipairs(holes) do states[i] = pack('<I7I7', hole[1], hole[2]) end
  saved_holes(table.concat(states))
end

-- Holes that touch are one. What is more than so many is forgotten: those turns stay taken.
local function add_hole(from, to)
  local holes = {}
  for _, hole in ipairs(load_holes()) do
    if from <= hole[2] and hole[2] <= from + 1 then
      from = hole[1]
    elseif hole[1] <= to and to <= hole[1] + 1 then
      to = hole[2]
    else
      holes[#holes + 1] = hole
    end
  end
  if #holes < 16 then holes[#holes + 1] = {from, to} end
  save_holes(holes)
end

-- The one before ends at an exact moment, and the turn begins at the microsecond after it: count on from the exact one.
local function charge(cost, moment, refused)
  local _, _, idle_at = report()
  if moment < time then moment = time end
  if moment == idle_at then
    charge_bucket(cost, 0, refused)
  else
    -- Another limit lets it go later only.
    if moment > idle_at and moment > time then add_hole(idle_at > time and idle_at or time, moment) end
    charge_bucket(cost, moment, refused)
  end
  return moment > idle_at and moment or idle_at
end

-- The last turn is free again, and then so are the holes before it.
local refund = op == 'refund' and function(cost)
  local _, _, idle_at = report()
  if given_at and begins_at(cost) ~= given_at then
    local span = cost * step + floor((cost * step_part + tokens - 1) / tokens)
    if step > 1 and given_at + span > time and given_at + span < idle_at then add_hole(given_at, given_at + span) end
    return due_at()
  end
  refund_latest(cost)
  local holes, is_met = load_holes(), true
  while is_met do
    is_met = false
    _, _, idle_at = report()
    for place, hole in ipairs(holes) do
      if hole[1] < idle_at and idle_at <= hole[2] then
        table.remove(holes, place)
        due_at(hole[1] > time and hole[1] or time)
        is_met = true
        break
      end
    end
  end
  save_holes(holes)
  due_at()
end

return when_allowed, charge, refund, report
