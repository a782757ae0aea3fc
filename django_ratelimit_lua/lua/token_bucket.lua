--[[
Token bucket, kept as one moment (the generic cell rate algorithm of ITU-T I.371): the bucket is full from `due` on.

Every token moves that moment by an interval of b / a microseconds. The fraction of it is kept as an integer too, so nothing
is ever rounded: a moment or a span is a pair (us, part) that means us + part / a microseconds.

record          limit: the burst; a / b: tokens per microsecond in lowest terms; c and d: an interval, as such a pair;
                e and f: a burst, as such a pair
state           clock, us, part, a, b, burst
promise         in any interval of x microseconds it lets at most burst + x * a / b units go
]]
local time, us, part = now, now, 0

local function move(tokens)
  local parts = part + tokens * d
  us, part = us + tokens * c + floor(parts / a), parts % a
end

local state = checked(redis.pcall('GET', key), key)
if state and #state == 48 then
  local clock, due, rest, old_a, old_b, old_burst = unpack('<dddddd', state)
  local back = set_back(clock)
  if back > 0 then
    clock, due = clock - back, due - back
    rcall('SET', key, pack('<dddddd', clock, due, rest, old_a, old_b, old_burst), 'KEEPTTL')
  end
  if clock > time then time = clock end
  if old_a ~= a or old_b ~= b or old_burst ~= limit then
    -- The limit was edited: the tokens owed at the last write are owed under the new numbers, up to a full burst.
    local owed, span, parts = 0, due - clock, rest - 1
    if parts < 0 then span, parts = span - 1, old_a - 1 end
    if span >= 0 then owed = whole_tokens(span, parts, old_a, old_b) + 1 end
    us = clock
    move(owed < limit and owed or limit)
    due, rest = us, part
  end
  us, part = due, rest
  if us < time then us, part = time, 0 end
end

-- The first microsecond at which this cost fits into the burst.
local function at(cost)
  if cost > limit then return nil end
  local parts = part + cost * d - f
  local moment = us + cost * c - e + floor(parts / a)
  if parts % a > 0 then moment = moment + 1 end
  return moment > time and moment or now
end

local function take(cost, moment, refused)
  if moment > us then us, part = moment, 0 end
  move(cost)
  -- A refused hit costs too, but never more than an empty bucket.
  if refused and (us - time > e or (us - time == e and part > f)) then us, part = time + e, f end
  write(key, pack('<dddddd', time, us, part, a, b, limit), part > 0 and us + 1 or us, time)
end

-- What has leaked since the hit is not there any more to be given back.
local give = op == 'refund' and function(cost)
  local before, before_part = us, part
  move(-cost)
  if given_at and time > given_at then us = us + (time - given_at) end
  if us > before or (us == before and part > before_part) then us, part = before, before_part end
  if us < time then us, part = time, 0 end
  write(key, pack('<dddddd', time, us, part, a, b, limit), part > 0 and us + 1 or us, time)
end

local function numbers()
  local span, rest = time + e - us, f - part
  if rest < 0 then span, rest = span - 1, rest + a end
  local room = whole_tokens(span, rest, a, b)
  if room > limit then room = limit end
  local unused = us == time and part == 0
  return limit - room, room, unused and now or part > 0 and us + 1 or us
end

return at, take, give, numbers
