--[[
Token bucket, kept as one moment (the generic cell rate algorithm of ITU-T I.371): the bucket is full from `due` on.

Every token moves that moment by an interval of micros / tokens microseconds. The fraction of it is kept as an integer too, so nothing
is ever rounded: a moment or a span is a pair (us, part) that means us + part / tokens microseconds.

A refund by the moment of its hit computes that moment again, without the hit. So the state has the hits since the bucket was
last full, in runs: what came while a run was not worked off yet begins a run of its own, what came later joins the one
before. That loses nothing. Of more than sixteen runs, those that are closest become one, as if all of it had come with the
latest (but nothing that has gone, with what is still to go): so `due` is never too early, and what is left when all are
given back is nothing.

record          limit, period, tokens, micros, step, step_part, full, full_part
                limit: the burst; tokens / micros: the rate in lowest terms; step and step_part: an interval, as such a
                pair; full and full_part: a burst, as such a pair; more: not empty where the algorithm that opens it keeps
                something else in the runs' place
state           clock, us, part, tokens, micros, burst; then for each run the moment of its first hit (left out where it is the only one
                and the next is the same), the moment from which its units are worked off, and the units
promise         in any interval of x microseconds it lets at most burst + x * tokens / micros units go
]]
local tokens, micros, step, step_part, full, full_part = a, b, c, d, e, f
local time, us, part, runs, latest = now, now, 0, '', ''

local function move(units)
  local parts = part + units * step_part
  us, part = us + units * step + floor(parts / tokens), parts % tokens
  if us >= 9007199254740991 then us, part = 9007199254740991, 0 end
end

-- The first moment, the moment it is worked off from, and the units of a run; one that is not ours is a run of nothing.
local function run_at(offset)
  local first, from, units = unpack('<ddd', runs, offset)
  local most = 9007199254740992
  if not (first > -most and first < most and from > -most and from < most and units > -most and units < most
      and first % 1 == 0 and from % 1 == 0 and units % 1 == 0) then
    first, from, units = time, time, 0
  end
  return first, from, units
end

-- The limit was edited: the tokens owed at the last write are owed under the new numbers, up to a full burst.
local function owe_anew(clock, due, rest, old_tokens, old_micros)
  local owed, span, parts = 0, due - clock, rest - 1
  if parts < 0 then span, parts = span - 1, old_tokens - 1 end
  if span >= 0 then
    owed = whole_tokens(span, parts, old_tokens, old_micros)
    owed = owed + 1
  end
  owed = owed < limit and owed or limit
  us, part = clock, 0
  move(owed)
  local first = runs == '' and pack('<d', clock) or string.sub(runs, 1, 8)
  return us, part, more == '' and first .. pack('<dd', clock, owed) or ''
end

local state = checked(redis.pcall('GET', key), key)
-- A run is looked at where it is read: nearly every call needs the last one only.
if state and (#state == 64 or (#state >= 48 and #state <= 432 and #state % 24 == 0))
    and is_ours(state, (more ~= '' or #state < 64) and #state or 64) then
  local clock, due, rest, old_tokens, old_micros, old_burst = unpack('<dddddd', state)
  runs = string.sub(state, 49)
  if #state == 64 then runs = string.sub(state, 49, 56) .. runs end
  local back = clock_regression(clock)
  if back > 0 then
    clock, due = clock - back, due - back
    local moved = {}
    for offset = 1, #runs, 24 do
      local first, from, units = unpack('<ddd', runs, offset)
      moved[#moved + 1] = pack('<ddd', first - back, from - back, units)
    end
    runs = table.concat(moved)
    rcall('SET', key, pack('<dddddd', clock, due, rest, old_tokens, old_micros, old_burst) .. runs, 'KEEPTTL')
  end
  if clock > time then time = clock end
  if (old_tokens ~= tokens or old_micros ~= micros or old_burst ~= limit) and old_tokens > 0 and old_micros > 0 then
    due, rest, runs = owe_anew(clock, due, rest, old_tokens, old_micros)
  end
  us, part = due, rest
  if us < time or (us == time and part == 0) then us, part, runs = time, 0, '' end
end

-- The first microsecond at which this cost fits into the burst.
local function when_allowed(cost)
  local moment
  if cost <= limit then
    local parts = part + cost * step_part - full_part
    moment = us + cost * step - full + floor(parts / tokens)
    if parts % tokens > 0 then moment = moment + 1 end
    if moment <= time then moment = now end
  end
  return moment
end

local function save()
  if us < time or (us == time and part == 0) then us, part, runs = time, 0, '' end
  write(key, pack('<dddddd', time, us, part, tokens, micros, limit) .. runs .. latest, part > 0 and us + 1 or us, time)
end

-- Remember units by the moment they go: the runs as they are saved, and perhaps the latest behind them.
local function note(cost, moment)
  cost = bounded(cost)
  local size, done, first, from, units = #runs, 0, nil, nil, nil
  while size > 0 do
    first, from, units = run_at(size - 23)
    units = bounded(units + done)
    local parts = units * step_part
    local finish = from + units * step + floor(parts / tokens)
    if finish > time or (finish == time and parts % tokens > 0) then break end
    -- Worked off, even if it were alone: what leaves it leaves the run before.
    done, size = units, size - 24
  end
  if size == 0 then
    runs = pack('<dd', moment, cost)
  elseif moment > from then
    if done > 0 then runs = string.sub(runs, 1, size - 24) .. pack('<ddd', first, from, units) end
    if #runs < 384 then
      latest = pack('<ddd', moment, moment, cost)
    else
      -- With this one too many: the closer half become one with their neighbours.
      local numbers, gaps = {unpack('<dddddddddddddddddddddddddddddddddddddddddddddddd', runs)}, {}
      numbers[49], numbers[50], numbers[51] = moment, moment, cost
      for i = 1, 46, 3 do
        local most, m, n, o = 9007199254740992, numbers[i], numbers[i + 1], numbers[i + 2]
        if not (m > -most and m < most and n > -most and n < most and o > -most and o < most
            and m % 1 + n % 1 + o % 1 == 0) then
          numbers[i], numbers[i + 1], numbers[i + 2] = time, time, 0
        end
      end
      for i = 2, 47, 3 do
        local start, later = numbers[i], numbers[i + 3]
        gaps[#gaps + 1] = start <= time and later > time and math.huge or later - start
      end
      table.sort(gaps)
      local near, joined, size = gaps[8], 0, 0
      first, from, units = numbers[1], numbers[2], numbers[3]
      for i = 4, 49, 3 do
        local start = numbers[i + 1]
        if start - from <= near and joined < 8 and not (from <= time and start > time) then
          joined, from, units = joined + 1, start, bounded(units + numbers[i + 2])
        else
          numbers[size + 1], numbers[size + 2], numbers[size + 3] = first, from, units
          size, first, from, units = size + 3, numbers[i], start, numbers[i + 2]
        end
      end
      numbers[size + 1], numbers[size + 2], numbers[size + 3] = first, from, units
      runs = pack('<' .. string.rep('d', size + 3), unpack_args(numbers, 1, size + 3))
    end
  else
    -- Together with the last, or taken after what will go later.
    while size > 24 and first > moment do
      local earlier, _, before = run_at(size - 47)
      first, units, size = earlier, units + before, size - 24
    end
    first, units = first < moment and first or moment, bounded(units + cost)
    if size == 24 and first == from then
      runs = pack('<dd', from, units)
    else
      runs = string.sub(runs, 1, size - 24) .. pack('<ddd', first, from, units)
    end
  end
end

local function charge(cost, moment, refused)
  if moment < time then moment = time end
  if more == '' then
    note(cost, moment)
  end
  if moment > us then us, part = moment, 0 end
  move(cost)
  -- A refused hit costs too, but never more than an empty bucket.
  if refused and (us - time > full or (us - time == full and part > full_part)) then us, part = time + full, full_part end
  save()
  return moment
end

-- Take units out of the run that has the hit (without a moment: out of the latest) and see what is owed without them.
local refund = op == 'refund' and function(cost)
  local before, before_part, left, remaining = us, part, cost, ''
  if not given_at or more ~= '' then move(-cost) end
  if more ~= '' then return save() end
  local due, due_part, total = time, 0, 0
  for offset = #runs - 23, 1, -24 do
    local first, from, units = run_at(offset)
    if left > 0 and (not given_at or first <= given_at) then
      local back = units < left and units or left
      units, left = units - back, given_at and 0 or left - back
    end
    if units > 0 then
      remaining, total = pack('<ddd', first, from, units) .. remaining, total + units
      local parts = total * step_part
      local finish, rest = from + total * step + floor(parts / tokens), parts % tokens
      if finish > due or (finish == due and rest > due_part) then due, due_part = finish, rest end
    end
  end
  runs = remaining
  if #runs == 24 and string.sub(runs, 1, 8) == string.sub(runs, 9, 16) then runs = string.sub(runs, 9) end
  if given_at then
    us, part = before, before_part
    if due < us or (due == us and due_part < part) then us, part = due, due_part end
  elseif runs == '' then
    us, part = time, 0
  end
  save()
end

local function report()
  local span, rest = time + full - us, full_part - part
  if rest < 0 then span, rest = span - 1, rest + tokens end
  local room = whole_tokens(span, rest, tokens, micros)
  if room > limit then room = limit end
  local unused = us == time and part == 0
  return limit - room, room, unused and now or part > 0 and us + 1 or us
end

if more == '' then return when_allowed, charge, refund, report end

-- For an algorithm that keeps something else in the runs' place: that, and what takes its place.
local function in_place_of_runs(text)
  runs = text or runs
  return runs
end

-- When the latest so many units begin to be worked off.
local function begins_at(cost)
  local parts = part - cost * step_part
  local moment = us - cost * step + floor(parts / tokens)
  return parts % tokens > 0 and moment + 1 or moment
end

-- To be due at a moment that is earlier; without one, only to write down what has changed.
local function due_at(moment)
  if moment then us, part = moment, 0 end
  save()
end

return when_allowed, charge, refund, report, time, in_place_of_runs, begins_at, due_at

--[==[ hit
local time, us, part, runs, latest, more = now, now, 0, '', '', ''
if state then
  local size, most = #state, 9007199254740992
  if size ~= 64 and (size < 48 or size > 432 or size % 24 ~= 0) then return again end
  -- Behind the last number, `unpack` gives a position.
  local clock, due, rest, old_tokens, old_micros, old_burst, first, from = unpack(
    size > 48 and '<dddddddd' or '<dddddd', state)
  from = from or 0
  if not (clock >= 0 and clock - now <= 60000000 and due >= 0 and due < most and rest >= 0 and rest < old_tokens
      and first >= 0 and first < most and from >= 0 and from < most
      and clock % 1 + due % 1 + rest % 1 + first % 1 + from % 1 == 0) then return again end
  runs = string.sub(state, 49)
  if size == 64 then runs = string.sub(runs, 1, 8) .. runs end
  if old_tokens ~= tokens or old_micros ~= micros or old_burst ~= limit then
    if not (old_tokens < most and old_micros > 0 and old_micros < most and old_burst > -most and old_burst < most
        and old_tokens % 1 + old_micros % 1 + old_burst % 1 == 0) then return again end
    due, rest, runs = owe_anew(clock, due, rest, old_tokens, old_micros)
  end
  if clock > time then time = clock end
  us, part = due, rest
  if us < time or (us == time and part == 0) then us, part, runs = time, 0, '' end
end
]==]
