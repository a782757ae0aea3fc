--[[
Token bucket, kept as one moment (the generic cell rate algorithm of ITU-T I.371): the bucket is full from `due` on.

Every token moves that moment by an interval of micros / tokens microseconds. The fraction of it is kept as an integer too, so nothing
is ever rounded: a moment or a span is a pair (us, part) that means us + part / tokens microseconds.

A refund by the moment of its hit computes that moment again, without the hit. So the state has the hits since the bucket was
last full, in the order in which they were taken. Of more than sixteen, the earliest nine become the past: from then on they
are given back as if all had come with the latest of them, but what they and those behind them have moved `due` to stays exact.
Of what is still to go, they become one hit, not of the past. After an edit of the limit, all before it are the past, also what
is still to go. So `due` is never too early, and what is left when all are given back is nothing. A hit only puts its own in front of the others: these are read where they become too many, and by a refund.

record          limit, period, tokens, micros, step, step_part, full, full_part
                limit: the burst; tokens / micros: the rate in lowest terms; step and step_part: an interval, as such a
                pair; full and full_part: a burst, as such a pair; more: `holes` where the algorithm that opens it keeps
                something else in the place of the hits; or, as a double, how many units a new client does not have
state           integers of 7 bytes, of 4 where units are marked: us, part, tokens, micros, burst; the clock, and the units (4) of
                the hit that was taken at that moment, or 0; then of the others, the latest first, the moment and the units (4);
                at the end perhaps the past: the moments of its first and last, its units, and the us and part it led to
promise         in any interval of x microseconds it lets at most burst + x * tokens / micros units go; with debts, and the cost
                of the last one of these
]]
local tokens, micros, step, step_part, full, full_part = a, b, c, d, e, f
local time, us, part, latest, units, hits = now, now, 0, now, 0, ''
local has_holes, missing, kept = more == 'holes', 0, 0
-- Whoever has less at first is remembered for 30 days after the bucket was full. That is the meaning of new, not of expiry.
if #more == 8 then missing, kept = unpack('<d', more), 2592000000000 end
local is_new = missing > 0

-- Where so many units lead to from a moment.
local function moved(us, part, units)
  part = part + units * step_part
  local rest = part % tokens
  us, part = us + units * step + (part - rest) / tokens, rest
  if us >= 9007199254740991 then us, part = 9007199254740991, 0 end
  return us, part
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
  local moment, over = moved(clock, 0, owed)
  local noted = ''
  if not has_holes then
    -- All of them are the past, with the units that were taken: so many may be given back.
    local size, first, last, sum = #hits % 11 == 2 and #hits - 35 or #hits, 9007199254740991, clock, 0
    if size < #hits then first, last, sum = unpack('<I7I7I7', hits, size + 1) end
    for offset = 1, size, 11 do
      local from, count = unpack('<I7I4', hits, offset)
      if count > 0 then
        if from < first then first = from end
        if from > last then last = from end
        sum = bounded(sum + count)
      end
    end
    noted = pack('<I7I4I7I7I7I7I7', clock, 0, first, last > clock and last or clock, sum, moment, over)
  end
  return moment, over, noted
end

-- The state was written before the clock was set back by so much.
local function move_back(state, back)
  local function earlier(moment) return moment > back and moment - back or 0 end
  local due, rest, old_tokens, old_micros, old_burst = unpack('<I7I7I7I7I7', state)
  local found = {pack('<I7I7I7I7I7', earlier(due), rest, old_tokens, old_micros, old_burst)}
  local past = not has_holes and #state % 11 == 4 and #state - 34 or #state + 1
  for offset = 36, not has_holes and past - 11 or 36, 11 do
    local moment, count = unpack('<I7I4', state, offset)
    found[#found + 1] = pack('<I7I4', earlier(moment), count)
  end
  if has_holes then
    for offset = 47, #state, 7 do found[#found + 1] = pack('<I7', earlier(unpack('<I7', state, offset))) end
  elseif past < #state then
    local first, last, sum, led, over = unpack('<I7I7I7I7I7', state, past)
    found[#found + 1] = pack('<I7I7I7I7I7', earlier(first), earlier(last), sum, earlier(led), over)
  end
  return table.concat(found)
end

local state = checked(redis.pcall('GET', key), key)
local length, most = state and #state or 0, 9007199254740992
if length >= 46 and length <= 270 and (has_holes and length % 14 == 4
    or not has_holes and (length % 11 == 2 or length % 11 == 4 and length >= 81)) then
  local due, rest, old_tokens, old_micros, old_burst, clock, noted = unpack('<I7I7I7I7I7I7I4', state)
  -- Else not written by this program: no more ours to keep than a key of another type.
  if due < most and rest < old_tokens and old_tokens < most and old_micros > 0 and old_micros < most
      and old_burst < most and clock < most then
    local back = clock_regression(clock)
    if back > 0 then
      state = move_back(state, back)
      rcall('SET', key, state, 'KEEPTTL')
      due, rest, old_tokens, old_micros, old_burst, clock, noted = unpack('<I7I7I7I7I7I7I4', state)
    end
    hits = string.sub(state, not has_holes and 36 or 47)
    latest, units = clock, noted
    if old_tokens ~= tokens or old_micros ~= micros or old_burst ~= limit then
      units = 0
      due, rest, hits = owe_anew(clock, due, rest, old_tokens, old_micros)
    end
    if clock > time then time = clock end
    us, part = due, rest
    is_new = is_new and (part > 0 and us + 1 or us) + kept <= time
    if us < time or (us == time and part == 0) then us, part, units, hits = time, 0, 0, '' end
  end
end

-- The first microsecond at which this cost fits into the burst.
local function when_allowed(cost)
  local moment
  if cost <= limit then
    local parts = part + cost * step_part - full_part
    local rest = parts % tokens
    moment = us + cost * step - full + (parts - rest) / tokens
    if rest > 0 then moment = moment + 1 end
    if moment <= time then moment = now end
  end
  return moment
end

local function save()
  local finish = (part > 0 and us + 1 or us) + kept
  write(key, pack('<I7I7I7I7I7I7I4', us, part, tokens, micros, limit, latest, units) .. hits, finish, time)
end

-- Note units by the moment they go. Before, the first of the hits is the latest; afterwards, the first of the others.
local function note(cost, moment)
  if units > 0 and latest < moment then
    units = 0
  elseif hits ~= '' then
    hits = string.sub(hits, 12)
  end
  latest, units = moment, bounded(units + cost)
  if #hits >= 176 or units > 4294967295 then
    local size, left = #hits % 11 == 2 and #hits - 35 or #hits, 77
    -- More units than are kept of one hit are of the past at once.
    if units > 4294967295 then left = 0 end
    if size >= 176 or left == 0 then
      local first, last, sum, due, rest, ahead_at, ahead = moment, 0, 0, 0, 0, 0, 0
      if size < #hits then
        first, last, sum, due, rest = unpack('<I7I7I7I7I7', hits, size + 1)
      elseif size > 0 then
        first = unpack('<I7', hits, size - 10)
      end
      for offset = size - 10, left == 0 and -10 or left + 1, -11 do
        local from, count = moment, units
        if offset > 0 then from, count = unpack('<I7I4', hits, offset) end
        if from < first then first = from end
        -- What was taken after what will go later, goes with it.
        if from < ahead_at then from = ahead_at end
        if from > time and ahead + count <= 4294967295 then
          ahead_at, ahead = from, ahead + count
        else
          if from > last then last = from end
          if from > due then due, rest = from, 0 end
          sum = bounded(sum + count)
          due, rest = moved(due, rest, count)
        end
      end
      local joined = ahead > 0 and pack('<I7I4', ahead_at, ahead) or ''
      hits = string.sub(hits, 1, left) .. joined .. pack('<I7I7I7I7I7', first, last, sum, due, rest)
      if left == 0 then latest, units = time, 0 end
    end
  end
  if latest > time then
    hits = pack('<I7I4', latest, units) .. hits
    latest, units = time, 0
  end
end

local function charge(cost, moment, refused)
  if moment < time then moment = time end
  if not has_holes then
    note(cost, moment)
  else
    latest, units = time, 0
  end
  if moment > us then us, part = moment, 0 end
  local owed, rest = us, part
  us, part = moved(us, part, cost)
  -- A refused hit costs too, but never more than an empty bucket; it forgives nothing that is owed beyond that.
  if refused and (us - time > full or (us - time == full and part > full_part)) then
    us, part = time + full, full_part
    if owed > us or (owed == us and rest > part) then us, part = owed, rest end
  end
  save()
  return moment
end

-- Take units out of the hit of that moment (without one: out of the latest) and see what is owed without them.
local refund = op == 'refund' and function(cost)
  if is_new then return end
  latest, units = time, 0
  if has_holes then
    us, part = moved(us, part, -cost)
    if us < time then us, part, hits = time, 0, '' end
    return save()
  end
  local size = #hits % 11 == 2 and #hits - 35 or #hits
  local first, last, sum, due, rest = 0, 0, 0, 0, 0
  if size < #hits then
    first, last, sum, due, rest = unpack('<I7I7I7I7I7', hits, size + 1)
  elseif size > 0 then
    first = unpack('<I7', hits, size - 10)
  end
  local moments, counts, to, left = {last}, {sum}, 1, cost
  for offset = size - 10, 1, -11 do
    to = to + 1
    moments[to], counts[to] = unpack('<I7I4', hits, offset)
    -- What was given back lets those who come later go before others that wait.
    if counts[to] > 0 and moments[to] < first then first = moments[to] end
  end
  local function give_back(place)
    local back = math.min(left, counts[place])
    left, counts[place] = left - back, counts[place] - back
  end
  if not given_at then
    for place = to, 1, -1 do give_back(place) end
  elseif given_at >= first then
    -- What may be of the past is taken from there: after an edit, those who came later are owed less than they were.
    if given_at < last then give_back(1) end
    while left > 0 do
      -- Else from what is of that moment. Where hits have become one, it is in what goes later; and where the past has gone
      -- further, others may have been given back from there. Of those the least moment, so that the later find theirs.
      local own
      for place = to, 1, -1 do
        local moment = moments[place]
        if counts[place] > 0 and (moment == given_at or size < #hits and (moment > given_at or given_at <= last))
            and (not own or moments[own] ~= given_at and (moment == given_at or moment < moments[own])) then
          own = place
        end
      end
      if not own then break end
      give_back(own)
    end
  end
  if counts[1] == 0 then
    due, rest = 0, 0
  elseif counts[1] < sum then
    local other, over = moved(last, 0, counts[1])
    if other < due or (other == due and over < rest) then due, rest = other, over end
  end
  local past, total, kept = '', counts[1], ''
  if size < #hits then past = pack('<I7I7I7I7I7', first, last, counts[1], due, rest) end
  for place = 2, to do
    if counts[place] > 0 then
      total, kept = total + counts[place], pack('<I7I4', moments[place], counts[place]) .. kept
      if moments[place] > due then due, rest = moments[place], 0 end
      due, rest = moved(due, rest, counts[place])
    end
  end
  hits = kept .. past
  if not given_at then
    us, part = moved(us, part, -cost)
  elseif due < us or (due == us and rest < part) then
    us, part = due, rest
  end
  if total == 0 or us < time then us, part = time, 0 end
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

-- As if all but the initial units had just been taken.
if is_new then
  charge(missing, time, false)
  hits = pack('<I7I4', latest, units) .. hits
end

if not has_holes then return when_allowed, charge, refund, report end

-- For an algorithm that keeps something else in the place of the hits: that, and what takes its place.
local function in_place_of_hits(text)
  hits = text or hits
  return hits
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
  latest, units = time, 0
  save()
end

return when_allowed, charge, refund, report, time, in_place_of_hits, begins_at, due_at

--[==[ hit
local time, us, part, latest, units, hits, has_holes, kept = now, now, 0, now, 0, '', false, 0
if state then
  local size, most = #state, 9007199254740992
  if size < 46 or size > 270 or size % 11 ~= 2 and (size % 11 ~= 4 or size < 81) then return again end
  local from, old_tokens, old_micros, old_burst = 36, nil, nil, nil
  us, part, old_tokens, old_micros, old_burst, latest, units = unpack('<I7I7I7I7I7I7I4', state)
  if not (latest - now <= 60000000 and us < most and part < old_tokens) then return again end
  if old_tokens ~= tokens or old_micros ~= micros or old_burst ~= limit then
    if not (old_tokens < most and old_micros > 0 and old_micros < most and old_burst < most) then return again end
    hits = string.sub(state, 36)
    us, part, state = owe_anew(latest, us, part, old_tokens, old_micros)
    units, from = 0, 1
  end
  if latest > time then time = latest end
  if us < time or (us == time and part == 0) then
    us, part, units, hits = time, 0, 0, ''
  else
    hits = string.sub(state, from)
  end
end
]==]
