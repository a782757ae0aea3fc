--[[
What every algorithm shares: the clock, reading and writing one limit's state, and the arithmetic of whole tokens.

A state is a few numbers packed by `struct`, as doubles or as integers of seven bytes: integers up to 2^53 survive both, and
Lua's own number formatting, which loses the digits of a microsecond stamp, is never used. One of them is the clock of the last
write, and a limit's `time` is never before that: a clock that steps backwards refills nothing and forgets nothing. Where it was set back by more than a
minute, the state is moved along with it, once: what was counted stays counted, and time goes on from there.
]]
local op, cleared = ARGV[1], 0
local given_at = op == 'refund' and tonumber(ARGV[4]) or nil

-- A key of another type under our prefix is not ours to keep: clear it, count it, go on as if it was not there.
local function checked(reply, key)
  if type(reply) == 'table' and reply.err then
    if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply.err) end
    rcall('DEL', key)
    cleared = cleared + 1
    return false
  end
  return reply
end

-- How far the clock was set back since a state was written, if that is more than clocks of several hosts may differ by.
local function clock_regression(clock)
  return clock - now > 60000000 and clock - now or 0
end

-- Milliseconds that a state is worth keeping which is idle from then on. Expiry is garbage collection, never meaning.
-- (A whole number as an argument reaches Redis with all its digits; only Lua's own formatting would lose some.)
-- Redis takes no expiry that its own clock could not count to: what is owed for a thousand years is owed for that long.
local function lifetime(idle_at)
  local milliseconds = floor((idle_at - now + slack) / 1000) + 1
  return milliseconds < 31536000000000 and milliseconds or 31536000000000
end

local function write(key, state, idle_at, time)
  if idle_at > time then
    local milliseconds = lifetime(idle_at)
    rcall('SET', key, state, 'PX', milliseconds)
  else
    rcall('DEL', key)
  end
end

-- Whether a state's numbers, up to so many bytes of it, are such as this program writes; else it is no more ours to keep than
-- a key of another type. Eight at a time, without a table. (Behind the last number, `unpack` gives a position.)
local function is_ours(state, size)
  local most = 9007199254740992
  for offset = 1, size, 64 do
    local m, n, o, p, q, r, s, t = unpack(string.sub('<dddddddd', 1, 1 + (size - offset + 1) / 8), state, offset)
    n, o, p, q, r, s, t = n or 0, o or 0, p or 0, q or 0, r or 0, s or 0, t or 0
    if not (m > -most and m < most and m % 1 == 0 and n > -most and n < most and n % 1 == 0
        and o > -most and o < most and o % 1 == 0 and p > -most and p < most and p % 1 == 0
        and q > -most and q < most and q % 1 == 0 and r > -most and r < most and r % 1 == 0
        and s > -most and s < most and s % 1 == 0 and t > -most and t < most and t % 1 == 0) then return false end
  end
  return true
end

-- Units that were used without asking may be as many as a number holds; what is more than that counts as that many.
local function bounded(number)
  return number < 9007199254740991 and number or 9007199254740991
end

-- How many whole tokens, at so many per micros microseconds, a span of (us + part / tokens) microseconds is worth.
-- The quotient is exact below 2^53; above that it is an estimate, and the comparisons are exact.
local function whole_tokens(us, part, tokens, micros)
  local dividend = us * tokens + part
  local whole = us >= 0 and floor(dividend / micros) or 0
  if us >= 0 and dividend >= 9007199254740992 then
    local function fits(count)
      local parts = count * (micros % tokens)
      local span = count * floor(micros / tokens) + floor(parts / tokens)
      return span < us or (span == us and parts % tokens <= part)
    end
    if whole > 4503599627370496 then
      whole = 4503599627370496
    else
      while not fits(whole) do whole = whole - 1 end
      while fits(whole + 1) do whole = whole + 1 end
    end
  end
  return whole
end
