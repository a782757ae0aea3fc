--[[
Token bucket, kept as one moment (the generic cell rate algorithm of ITU-T I.371): the bucket is full from `due` on.

Every token moves that moment by an interval of b / a microseconds. The fraction of it is kept as an integer too, so nothing
is ever rounded: a moment or a span is a pair (us, part) that means us + part / a microseconds.

A refund by the moment of its hit computes that moment again, without the hit. So the state has the hits since the bucket was
last full, in runs: what came while a run was not worked off yet begins a run of its own, what came later joins the one
before. That loses nothing. Of more than sixteen runs, those that are closest become one, as if all of it had come with the
latest (but nothing that has gone, with what is still to go): so `due` is never too early, and what is left when all are
given back is nothing.

record          limit: the burst; a / b: tokens per microsecond in lowest terms; c and d: an interval, as such a pair;
                e and f: a burst, as such a pair; more: not empty where the algorithm that opens it keeps something else in
                the runs' place
state           clock, us, part, a, b, burst; then for each run the moment of its first hit (left out where it is the only one
                and the next is the same), the moment from which its units are worked off, and the units
promise         in any interval of x microseconds it lets at most burst + x * a / b units go
]]
local time, us, part, runs = now, now, 0, ''

local function move(tokens)
  local parts = part + tokens * d
  us, part = us + tokens * c + floor(parts / a), parts % a
  if us >= 9007199254740991 then us, part = 9007199254740991, 0 end
end

local state = checked(redis.pcall('GET', key), key)
if state and (#state == 64 or (#state >= 48 and #state % 24 == 0)) and is_ours(state) then
  local clock, due, rest, old_a, old_b, old_burst = unpack('<dddddd', state)
  runs = string.sub(state, 49)
  if #state == 64 then runs = string.sub(state, 49, 56) .. runs end
  local back = set_back(clock)
  if back > 0 then
    clock, due = clock - back, due - back
    local moved = {}
    for offset = 1, #runs, 24 do
      local first, from, units = unpack('<ddd', runs, offset)
      moved[#moved + 1] = pack('<ddd', first - back, from - back, units)
    end
    runs = table.concat(moved)
    rcall('SET', key, pack('<dddddd', clock, due, rest, old_a, old_b, old_burst) .. runs, 'KEEPTTL')
  end
  if clock > time then time = clock end
  if (old_a ~= a or old_b ~= b or old_burst ~= limit) and old_a > 0 and old_b > 0 then
    -- The limit was edited: the tokens owed at the last write are owed under the new numbers, up to a full burst.
    local owed, span, parts = 0, due - clock, rest - 1
    if parts < 0 then span, parts = span - 1, old_a - 1 end
    if span >= 0 then owed = whole_tokens(span, parts, old_a, old_b) + 1 end
    owed = owed < limit and owed or limit
    us = clock
    move(owed)
    due, rest = us, part
    local first = runs == '' and pack('<d', clock) or string.sub(runs, 1, 8)
    runs = more == '' and first .. pack('<dd', clock, owed) or ''
  end
  us, part = due, rest
  if us < time or (us == time and part == 0) then us, part, runs = time, 0, '' end
end

-- The first microsecond at which this cost fits into the burst.
local function at(cost)
  if cost > limit then return nil end
  local parts = part + cost * d - f
  local moment = us + cost * c - e + floor(parts / a)
  if parts % a > 0 then moment = moment + 1 end
  return moment > time and moment or now
end

local function save()
  if us < time or (us == time and part == 0) then us, part, runs = time, 0, '' end
  local kept = runs
  if #kept == 24 and string.sub(kept, 1, 8) == string.sub(kept, 9, 16) then kept = string.sub(kept, 9) end
  write(key, pack('<dddddd', time, us, part, a, b, limit) .. kept, part > 0 and us + 1 or us, time)
end

-- Remember units by the moment they go.
local function note(cost, moment)
  cost = bounded(cost)
  local size, done, first, from, units = #runs, 0, nil, nil, nil
  while size > 0 do
    first, from, units = unpack('<ddd', runs, size - 23)
    units = bounded(units + done)
    local parts = units * d
    local finish = from + units * c + floor(parts / a)
    if finish > time or (finish == time and parts % a > 0) then break end
    -- Worked off, even if it were alone: what leaves it leaves the run before.
    done, size = units, size - 24
  end
  if size == 0 then
    runs = pack('<ddd', moment, moment, cost)
  elseif moment > from then
    if done > 0 then runs = string.sub(runs, 1, size - 24) .. pack('<ddd', first, from, units) end
    runs = runs .. pack('<ddd', moment, moment, cost)
    if #runs > 384 then
      -- So many that the closer half become one with their neighbours.
      local firsts, froms, sums, gaps = {}, {}, {}, {}
      for offset = 1, #runs, 24 do
        local one, start, of = unpack('<ddd', runs, offset)
        local size = #froms
        firsts[size + 1], froms[size + 1], sums[size + 1] = one, start, of
        if size > 0 then gaps[size] = froms[size] <= time and start > time and math.huge or start - froms[size] end
      end
      table.sort(gaps)
      local near, joined, kept = gaps[8], 0, {}
      local of = sums[1]
      first, from = firsts[1], froms[1]
      for i = 2, #froms do
        if froms[i] - from <= near and joined < 8 and not (from <= time and froms[i] > time) then
          joined, from, of = joined + 1, froms[i], bounded(of + sums[i])
        else
          kept[#kept + 1] = pack('<ddd', first, from, of)
          first, from, of = firsts[i], froms[i], sums[i]
        end
      end
      runs = table.concat(kept) .. pack('<ddd', first, from, of)
    end
  else
    -- Together with the last, or taken after what will go later.
    while size > 24 and first > moment do
      local earlier, _, before = unpack('<ddd', runs, size - 47)
      first, units, size = earlier, units + before, size - 24
    end
    runs = string.sub(runs, 1, size - 24) .. pack('<ddd', first < moment and first or moment, from, bounded(units + cost))
  end
end

local function take(cost, moment, refused)
  if moment < time then moment = time end
  if more == '' then note(cost, moment) end
  if moment > us then us, part = moment, 0 end
  move(cost)
  -- A refused hit costs too, but never more than an empty bucket.
  if refused and (us - time > e or (us - time == e and part > f)) then us, part = time + e, f end
  save()
  return moment
end

-- Take units out of the run that has the hit (without a moment: out of the latest) and see what is owed without them.
local give = op == 'refund' and function(cost)
  local before, before_part, left, total, kept = us, part, cost, 0, ''
  if not given_at or more ~= '' then move(-cost) end
  if more ~= '' then return save() end
  local due, due_part = time, 0
  for offset = #runs - 23, 1, -24 do
    local first, from, units = unpack('<ddd', runs, offset)
    if left > 0 and (not given_at or first <= given_at) then
      local back = units < left and units or left
      units, left = units - back, given_at and 0 or left - back
    end
    if units > 0 then
      kept, total = pack('<ddd', first, from, units) .. kept, total + units
      local parts = total * d
      local finish, rest = from + total * c + floor(parts / a), parts % a
      if finish > due or (finish == due and rest > due_part) then due, due_part = finish, rest end
    end
  end
  runs = kept
  if given_at then
    us, part = before, before_part
    if due < us or (due == us and due_part < part) then us, part = due, due_part end
  elseif runs == '' then
    us, part = time, 0
  end
  save()
end

local function numbers()
  local span, rest = time + e - us, f - part
  if rest < 0 then span, rest = span - 1, rest + a end
  local room = whole_tokens(span, rest, a, b)
  if room > limit then room = limit end
  local unused = us == time and part == 0
  return limit - room, room, unused and now or part > 0 and us + 1 or us
end

if more == '' then return at, take, give, numbers end

-- For an algorithm that keeps something else in the runs' place: that, and what takes its place.
local function other(kept)
  runs = kept or runs
  return runs
end

-- When the latest so many units begin to be worked off.
local function began(cost)
  local parts = part - cost * d
  local moment = us - cost * c + floor(parts / a)
  return parts % a > 0 and moment + 1 or moment
end

-- To be due at a moment that is earlier; without one, only to write down what has changed.
local function due_at(moment)
  if moment then us, part = moment, 0 end
  save()
end

return at, take, give, numbers, time, other, began, due_at
