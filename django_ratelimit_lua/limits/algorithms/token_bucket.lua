--[[
Token bucket, kept as one moment (the generic cell rate algorithm of ITU-T I.371): the bucket is full from `due` on.

Every token moves that moment by an interval of micros / tokens microseconds. The fraction of it is kept as an integer too, so nothing
is ever rounded: a moment or a span is a pair (us, part) that means us + part / tokens microseconds.

A refund by the moment of its hit computes that moment again, without the hit. So the state has the hits since the bucket was
last full, in the order in which they were taken. Of more than sixteen, the earliest nine become the past: from then on they
are given back as if all had come with the latest of them, but what they and those behind them have moved `due` to stays exact.
Of what is still to go, they become one hit, not of the past. After an edit of the limit, all before it are the past, also what
is still to go. So `due` is never too early, and what is left when all are given back is nothing. A hit only puts its own in front of the others: these are read where they become too many, and by a refund.

A leaky bucket is a queue: a token bucket whose callers wait their turn, so that they leave evenly; its burst is how many fit
in, the one being served and those that wait behind it. A turn that is given back while others wait behind it is a hole: they
have been told their turns, and keep them. Once all turns behind a hole are given back as well, the next one gets the hole's.

record          limit, period, tokens, micros, step, step_part, full, full_part
                limit: the burst; tokens / micros: the rate in lowest terms; step and step_part: an interval, as such a
                pair; full and full_part: a burst, as such a pair
state           integers of 7 bytes, of 4 where units are marked: us, part, tokens, micros, burst; the clock, and the units (4) of
                the hit that was taken at that moment, or 0; then of the others, the latest first, the moment and the units (4);
                at the end perhaps the past: the moments of its first and last, its units, and the us and part it led to.
                A leaky bucket has no hits, but for each hole its beginning and its end (7 bytes each)
promise         in any interval of x microseconds it lets at most burst + x * tokens / micros units go; with debts, and the cost
                of the last one of these. Of a leaky bucket, they leave period / limit apart (in whole microseconds, without
                drift); what does not fit is refused
]]
local units, shadow, count_denied, max_wait, limit, period, tokens, micros, step, step_part, full, full_part = unpack('<dddddddddddd', record)
-- cost
local is_queue = name == 'leaky_bucket'
local time, us, part, latest, noted, hits = now, now, 0, now, 0, ''

-- state
local most = 9007199254740992
local length, is_edited, whole_tokens, due, rest, old_tokens, old_micros, old_burst, clock, units_then = state and #state or 0, false
if state then
  local is_ours = length >= 46 and length <= 270
    and (is_queue and length % 14 == 4 or not is_queue and (length % 11 == 2 or length % 11 == 4 and length >= 81))
  if is_ours then
    due, rest, old_tokens, old_micros, old_burst, clock, units_then = unpack('<I7I7I7I7I7I7I4', state)
    is_ours = due < most and rest < old_tokens and old_tokens < most and old_micros > 0 and old_micros < most
      and old_burst < most and clock < most
  end
  if not is_ours then return nil, key, state end
  do
    if clock - now > 60000000 then
      -- The state was written before the clock was set back by so much.
      local back = clock - now
      local function earlier(moment) return moment > back and moment - back or 0 end
      local found = {pack('<I7I7I7I7I7I7I4', earlier(due), rest, old_tokens, old_micros, old_burst, now, units_then)}
      local past = not is_queue and length % 11 == 4 and length - 34 or length + 1
      for offset = 47, past - 1, is_queue and 7 or 11 do
        if is_queue then
          found[#found + 1] = pack('<I7', earlier(unpack('<I7', state, offset)))
        else
          local moment, count = unpack('<I7I4', state, offset)
          found[#found + 1] = pack('<I7I4', earlier(moment), count)
        end
      end
      if past < length then
        local first, last, sum, led, over = unpack('<I7I7I7I7I7', state, past)
        found[#found + 1] = pack('<I7I7I7I7I7', earlier(first), earlier(last), sum, earlier(led), over)
      end
      state, due, clock = table.concat(found), earlier(due), now
      rcall('SET', key, state, 'KEEPTTL')
    end
    us, part, latest, noted, hits = due, rest, clock, units_then, string.sub(state, is_queue and 47 or 36)
    is_edited = old_tokens ~= tokens or old_micros ~= micros or old_burst ~= limit
  end
end

-- How many whole tokens, at so many per micros microseconds, a span of (us + part / tokens) microseconds is worth.
-- The quotient is exact below 2^53; above that it is an estimate, and the comparisons are exact.
if is_edited or limit * micros >= most then
  whole_tokens = function(us, part, tokens, micros)
    local dividend = us * tokens + part
    local whole = us >= 0 and math.floor(dividend / micros) or 0
    if us < 0 or dividend < most then return whole end
    local function fits(count)
      local parts = count * (micros % tokens)
      local span = count * math.floor(micros / tokens) + math.floor(parts / tokens)
      return span < us or (span == us and parts % tokens <= part)
    end
    if whole > 4503599627370496 then return 4503599627370496 end
    while not fits(whole) do whole = whole - 1 end
    while fits(whole + 1) do whole = whole + 1 end
    return whole
  end
end

if is_edited then
  -- The tokens owed at the last write are owed under the new numbers, up to a full burst.
  local owed, span, parts = 0, us - clock, part - 1
  if parts < 0 then
    span, parts = span - 1, old_tokens - 1
  end
  if span >= 0 then owed = whole_tokens(span, parts, old_tokens, old_micros) + 1 end
  if owed > limit then owed = limit end
  part = owed * step_part
  us = clock + owed * step + (part - part % tokens) / tokens
  part = part % tokens
  noted = 0
  if is_queue then
    hits = ''
  else
    -- All of them are the past, with the units that were taken: so many may be given back.
    local size, first, last, sum = #hits % 11 == 2 and #hits - 35 or #hits, most - 1, clock, 0
    if size < #hits then first, last, sum = unpack('<I7I7I7', hits, size + 1) end
    for offset = 1, size, 11 do
      local from, count = unpack('<I7I4', hits, offset)
      if count > 0 then
        first = math.min(first, from)
        last = math.max(last, from)
        sum = math.min(sum + count, most - 1)
      end
    end
    hits = pack('<I7I4I7I7I7I7I7', clock, 0, first, math.max(last, clock), sum, us, part)
  end
end
if clock and clock > time then time = clock end

if us < time or us == time and part == 0 then
  us, part, noted, hits = time, 0, 0, ''
end

-- The first microsecond at which this cost fits into the burst. Of a cost that may be owed, nothing has to fit.
if limit > 0 and not is_queue and ARGV[4] == '2' and op ~= 'refund' then cost = 0 end
if cost <= limit then
  local parts = part + cost * step_part - full_part
  local rest = parts % tokens
  moment = us + cost * step - full + (parts - rest) / tokens
  if rest > 0 then moment = moment + 1 end
  if moment <= time then moment = now end
  if is_queue then
    -- Served when all before it have been; let in when there is room behind them.
    accepts = moment
    moment = (us > time or part > 0) and (part > 0 and us + 1 or us) or now
  end
end

-- The holes, with one more. Holes that touch are one, those that are over are forgotten. What is more than so many is
-- forgotten, too: those turns stay taken.
local with_hole = is_queue and function(from, to)
  local others, number = '', 0
  for offset = 1, #hits, 14 do
    local other_from, other_to = unpack('<I7I7', hits, offset)
    if other_to > time then
      if from <= other_to and other_to <= from + 1 then
        from = other_from
      elseif other_from <= to and to <= other_from + 1 then
        to = other_to
      else
        others, number = others .. pack('<I7I7', other_from, other_to), number + 1
      end
    end
  end
  return number < 16 and others .. pack('<I7I7', from, to) or others
end

-- verdict

if at then
  if at < time then at = time end
  if is_queue then
    -- A turn begins at the microsecond after an exact moment at which the one before it ends: count on from the exact one.
    local turn = (us > time or part > 0) and (part > 0 and us + 1 or us) or now
    latest, noted = time, 0
    if at ~= turn then
      -- Another limit lets it go later only.
      if at > turn and at > time then
        hits = with_hole(turn > time and turn or time, at)
      end
      if at > us then
        us, part = at, 0
      end
      if turn > at then at = turn end
    end
  else
    -- Note the units by the moment they go. Before, the first of the hits is the latest; afterwards, the first of the others.
    if noted > 0 and latest < at then
      noted = 0
    elseif hits ~= '' then
      hits = string.sub(hits, 12)
    end
    latest, noted = at, noted + units
    if noted > 9007199254740991 then noted = 9007199254740991 end
    if #hits >= 176 or noted > 4294967295 then
      local size, left = #hits % 11 == 2 and #hits - 35 or #hits, 77
      -- More units than are kept of one hit are of the past at once.
      if noted > 4294967295 then left = 0 end
      if size >= 176 or left == 0 then
        local first, last, sum, due, over, ahead_at, ahead = at, 0, 0, 0, 0, 0, 0
        if size < #hits then
          first, last, sum, due, over = unpack('<I7I7I7I7I7', hits, size + 1)
        elseif size > 0 then
          first = unpack('<I7', hits, size - 10)
        end
        for offset = size - 10, left == 0 and -10 or left + 1, -11 do
          local from, count = at, noted
          if offset > 0 then from, count = unpack('<I7I4', hits, offset) end
          if from < first then first = from end
          -- What was taken after what will go later, goes with it.
          if from < ahead_at then from = ahead_at end
          if from > time and ahead + count <= 4294967295 then
            ahead_at, ahead = from, ahead + count
          else
            if from > last then last = from end
            if from > due then
              due, over = from, 0
            end
            sum = math.min(sum + count, 9007199254740991)
            over = over + count * step_part
            due = due + count * step + (over - over % tokens) / tokens
            over = over % tokens
            if due >= most - 1 then
              due, over = most - 1, 0
            end
          end
        end
        local joined = ahead > 0 and pack('<I7I4', ahead_at, ahead) or ''
        hits = string.sub(hits, 1, left) .. joined .. pack('<I7I7I7I7I7', first, last, sum, due, over)
        if left == 0 then
          latest, noted = time, 0
        end
      end
    end
    if latest > time then
      hits = pack('<I7I4', latest, noted) .. hits
      latest, noted = time, 0
    end
    if at > us then
      us, part = at, 0
    end
  end
  part = part + units * step_part
  us = us + units * step + (part - part % tokens) / tokens
  part = part % tokens
  if us >= most - 1 then
    us, part = most - 1, 0
  end
  kept = pack('<I7I7I7I7I7I7I4', us, part, tokens, micros, limit, latest, noted) .. hits
elseif op == 'refund' and is_queue then
  local given_at, turn = tonumber(ARGV[4]), (us > time or part > 0) and (part > 0 and us + 1 or us) or now
  local parts = part - units * step_part
  local begins_at = us - units * step + math.floor(parts / tokens) + (parts % tokens > 0 and 1 or 0)
  latest, noted = time, 0
  if given_at and begins_at ~= given_at then
    local ends_at = given_at + units * step + math.floor((units * step_part + tokens - 1) / tokens)
    if step > 1 and ends_at > time and ends_at < turn then hits = with_hole(given_at, ends_at) end
  else
    -- The last turn is free again, and then so are the holes before it.
    part = part - units * step_part
    us = us - units * step + (part - part % tokens) / tokens
    part = part % tokens
    if us < time then
      us, part, hits = time, 0, ''
    end
    local is_met = true
    while is_met do
      is_met, turn = false, (us > time or part > 0) and (part > 0 and us + 1 or us) or now
      local others = ''
      for offset = 1, #hits, 14 do
        local from, to = unpack('<I7I7', hits, offset)
        if not is_met and from < turn and turn <= to then
          us, part, is_met = from > time and from or time, 0, true
        elseif to > time then
          others = others .. pack('<I7I7', from, to)
        end
      end
      hits = others
    end
  end
  kept = pack('<I7I7I7I7I7I7I4', us, part, tokens, micros, limit, latest, noted) .. hits
elseif op == 'refund' then
  -- Take units out of the hit of that moment (without one: out of the latest) and see what is owed without them.
  local given_at = tonumber(ARGV[4])
  latest, noted = time, 0
  local size = #hits % 11 == 2 and #hits - 35 or #hits
  local first, last, sum, due, rest = 0, 0, 0, 0, 0
  if size < #hits then
    first, last, sum, due, rest = unpack('<I7I7I7I7I7', hits, size + 1)
  elseif size > 0 then
    first = unpack('<I7', hits, size - 10)
  end
  local moments, counts, to, left = {last}, {sum}, 1, units
  for offset = size - 10, 1, -11 do
    to = to + 1
    moments[to], counts[to] = unpack('<I7I4', hits, offset)
    -- What was given back lets those who come later go before others that wait.
    if counts[to] > 0 and moments[to] < first then first = moments[to] end
  end
  local function moved(us, part, count)
    part = part + count * step_part
    us = us + count * step + (part - part % tokens) / tokens
    if us >= most - 1 then return most - 1, 0 end
    return us, part % tokens
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
  local past, total, others = '', counts[1], ''
  if size < #hits then past = pack('<I7I7I7I7I7', first, last, counts[1], due, rest) end
  for place = 2, to do
    if counts[place] > 0 then
      total, others = total + counts[place], pack('<I7I4', moments[place], counts[place]) .. others
      if moments[place] > due then due, rest = moments[place], 0 end
      due, rest = moved(due, rest, counts[place])
    end
  end
  hits = others .. past
  if not given_at then
    us, part = moved(us, part, -units)
  elseif due < us or (due == us and rest < part) then
    us, part = due, rest
  end
  if total == 0 or us < time then us, part = time, 0 end
  kept = pack('<I7I7I7I7I7I7I4', us, part, tokens, micros, limit, latest, noted) .. hits
end

local span, rest = time + full - us, full_part - part
if rest < 0 then
  span, rest = span - 1, rest + tokens
end
room = span * tokens + rest
room = whole_tokens and whole_tokens(span, rest, tokens, micros) or span >= 0 and (room - room % micros) / micros or 0
if room > limit then room = limit end
used = limit - room
idle_at = (us > time or part > 0) and (part > 0 and us + 1 or us) or now
