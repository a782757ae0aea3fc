--[[
Decides any number of limits, of any algorithms, all or nothing.

`decide` looks at one limit: its branch of that algorithm (a file of `algorithms/` each) reads the state, and works out when
the cost fits. Then verdict.lua, which stands in the middle of each branch, has `decide` look at the limits behind it. Only
then is it known whether all allow it, and on the way back each is charged and answered.

KEYS[1..n]      the state of each limit; then of each ban (see ban.lua), of those limits that have one
KEYS[n+1]       a hash: the current rules revision under `revision`, and what overrides say of a subject under the
                subject's digest, as a tag of 16 bytes and the rest; only when ARGV[2] is not empty
ARGV[1]         what to do: hit, peek, charge (take whatever the verdict is) or refund; or, and then look as a peek does:
                ban or unban. What charges or refunds names no bans
ARGV[2]         the rules revision the caller decided by, as `<number>-<tag>` (the tag: 16 hexadecimal digits), or 0:
                none was ever published; empty: do not ask (the fence)
ARGV[3]         the time in microseconds; empty: this server's own clock. By a time of the caller's, keys are kept for a
                minute longer than they are worth; or for as many microseconds as stand behind it and a space
ARGV[4]         of a hit or peek, 1: grant as many units as there are, if not all; 2: a token bucket that owes no more than it
                holds grants any cost, and is in debt for what is beyond it; of a refund, the time of the hit
                whose units are given back (the latest, if empty)
ARGV[5..]       for each limit two arguments: the name of its algorithm, and its record, doubles:
                cost, shadow (0 or 1), count_denied (0 or 1), max_wait in microseconds (below 0: any wait),
                limit, period in microseconds, the numbers that its algorithm's file names; and what that file may want more
                for this call. For a ban `ban`, and the 7 to 14 doubles that ban.lua names
ARGV[...]       only when ARGV[2] is not empty: the digests of the subjects, then the tag the caller knows for each
ARGV[#ARGV]     a token that the reply ends with, so that the caller can tell it from the reply to any other call
returns         doubles in one string: status (0 denied, 1 allowed), the time, units granted, how many keys
                of a foreign type were cleared, the wait (of a refusal: what it would have been); then for each limit its verdict (0 or 1), used, remaining,
                retry_after (below 0: never), reset_after, wait, and the moment from which the units count that a hit
                took (0: it took none), by which they are given back. Times and waits are microseconds. Then for each ban its
                end (0: there is none), how many offences, how often there was one, and 1 where this call has begun it.
                A stale caller gets the text `stale ` and the current revision, written as ARGV[2] is; no doubles begin
                so. One who knows another tag than a subject's gets, as an array, what is written about each subject.
                The token is the end of the string, or the last element of the array.
]]

local unpack_args = unpack
local rcall, pack, unpack = redis.call, struct.pack, struct.unpack
local op, revision, clock, token = ARGV[1], ARGV[2], ARGV[3], ARGV[#ARGV]
local now, slack, count, cleared = 0, 0, #KEYS, 0

if revision ~= '' then
  count = count - 1
  local first = 5 + 2 * count
  local subjects = (#ARGV - first) / 2
  local most = 4000 -- at once: Lua's stack has 8000 places.
  local upto = subjects > most and most or subjects
  local written = rcall('HMGET', KEYS[count + 1], 'revision', unpack_args(ARGV, first, first + upto - 1))
  local current = written[1] or '0'
  if current ~= revision then return 'stale ' .. current .. token end
  for after = most, subjects - 1, most do
    upto = subjects - after > most and after + most or subjects
    local more = rcall('HMGET', KEYS[count + 1], unpack_args(ARGV, first + after, first + upto - 1))
    for i = 1, upto - after do written[after + i + 1] = more[i] end
  end
  for i = 1, subjects do
    if string.sub(written[i + 1] or '', 1, 16) ~= ARGV[first + subjects - 1 + i] then
      table.remove(written, 1)
      written[subjects + 1] = token
      return written
    end
  end
end

if clock == '' then
  local seconds = rcall('TIME')
  now = seconds[1] * 1000000 + seconds[2]
else
  -- A caller's clock and the expiry clock may differ: keep the state a minute longer, or as it says.
  now, slack = tonumber(clock), 60000000
  if not now then
    local moment, longer = string.match(clock, '^(%d+) (%d+)$')
    now, slack = tonumber(moment), tonumber(longer)
  end
end

-- The bans of the limits, by their places. They are looked at before anything else.
local bans
if ARGV[3 + 2 * count] == 'ban' then
-- bans
end

-- Decides the limit of that number and those behind it, of which so far nothing is `denied`, the latest `departs`, and so
-- many units are `granted`. `forced`: the units, if they are not those of the record. Without `denied` it is only looked
-- at. It returns these three and the answers of all of them (of the first limit, the reply), or nothing and a key that is
-- not ours to keep, with what it holds; only looked at: units left and used, idle from when on, when it goes, is accepted.
--
-- A branch reads its record: `units` are to be charged, `cost` (see cost.lua) is looked at. It sets `moment` and perhaps `accepts`; after the verdict, if it charges or
-- gives back, `kept`: the state to be written, or true if it is in a sorted set already; then `used`, `room` and `idle_at`,
-- when all is free again: the key is kept until then.
-- What is handed on as an argument costs less than a local of the program that a function captures.
local function decide(KEYS, ARGV, rcall, pack, unpack, unpack_args, op, now, slack, limit_count, bans, states, i, forced, denied,
    departs, granted, cleared, token)
  local key, name, record, ban = KEYS[i], ARGV[3 + 2 * i], ARGV[4 + 2 * i], bans and bans[i]
  local moment, accepts, allowed, at, refused, answer, kept, used, room, idle_at
-- algorithms
  end

  if kept then
    local left = idle_at - now
    local milliseconds = (left + slack) / 1000
    milliseconds = milliseconds - milliseconds % 1 + 1
    if milliseconds > 31536000000000 then milliseconds = 31536000000000 end
    if kept == true then
      if idle_at > now then rcall('PEXPIRE', key, milliseconds) end
    elseif left > 0 then
      rcall('SET', key, kept, 'PX', milliseconds)
    else
      rcall('DEL', key)
    end
  end
  if denied == nil then return room, used, idle_at, moment, accepts end
  local verdict, retry = allowed and 1 or 0, 0
  if at and (refused or op == 'charge') then
    room, used, idle_at, moment, accepts = decide(KEYS, ARGV, rcall, pack, unpack, unpack_args, op, now, slack, limit_count, bans,
      nil, i, forced)
    allowed = moment and accepts <= now
  end
  if ban and ban.ends then
    room, idle_at = 0, math.max(idle_at, ban.ends)
  end
  if not allowed then retry = moment and accepts - now or -1 end
  local reset, wait = idle_at > now and idle_at - now or 0, moment and moment - now or 0
  answer = answer or ''
  if i > 1 then
    return denied, departs, granted, pack('<ddddddd', verdict, used, room, retry, reset, wait, at or 0) .. answer
  end
  if bans then
    for place = 1, limit_count do
      if bans[place] then answer = answer .. bans[place].report() end
    end
  end
  return pack('<dddddddddddd', denied and 0 or 1, now, denied and 0 or granted, cleared, departs - now,
    verdict, used, room, retry, reset, wait, at or 0) .. answer .. token
end

if count == 0 then return pack('<ddddd', 1, now, 0, 0, 0) .. token end
while true do
  local fitting
  if ARGV[4] == '1' and (op == 'hit' or op == 'peek') then
    for i = 1, count do
      local units, shadow = unpack('<dd', ARGV[4 + 2 * i])
      if shadow == 0 then
        local room, _, _, moment, accepts = decide(KEYS, ARGV, rcall, pack, unpack, unpack_args, op, now, slack, count,
          bans, nil, i, 1)
        fitting = math.min(fitting or units, units, moment and accepts <= now and room or 0)
      end
    end
    fitting = fitting and math.max(fitting, 1)
  end
  local reply, foreign, found = decide(KEYS, ARGV, rcall, pack, unpack, unpack_args, op, now, slack, count, bans, nil, 1, fitting,
    false, now, 0, cleared, token)
  if reply then return reply end
  -- A key that is not ours to keep, because it is of another type or not written by this program, is cleared and counted.
  if found.err and not string.find(found.err, 'WRONGTYPE', 1, true) then error(found.err) end
  rcall('DEL', foreign)
  cleared = cleared + 1
end
