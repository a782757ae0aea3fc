--[[
Decides any number of limits, of any algorithms, all or nothing.

KEYS[1..n]      the state of each limit
KEYS[n+1]       a hash: the current rules revision under `revision`, and what overrides say of a subject under the
                subject's digest, as a tag of 16 bytes and the rest; only when ARGV[2] is not empty
ARGV[1]         what to do: hit, peek, charge (take whatever the verdict is) or refund
ARGV[2]         the rules revision the caller decided by, as `<number>-<tag>` (the tag: 16 hexadecimal digits), or 0:
                none was ever published; empty: do not ask (the fence)
ARGV[3]         the time in microseconds; empty: this server's own clock
ARGV[4]         of a hit or peek, 1: grant as many units as there are, if not all; of a refund, the time of the hit
                whose units are given back (the latest, if empty)
ARGV[5..]       for each limit two arguments: the name of its algorithm, and its record, 12 doubles:
                cost, shadow (0 or 1), count_denied (0 or 1), max_wait in microseconds (below 0: any wait),
                limit, period in microseconds, and six numbers a to f that its algorithm's file explains; and as many
                more as that file may want for this call
ARGV[...]       only when ARGV[2] is not empty: the digests of the subjects, then the tag the caller knows for each
ARGV[#ARGV]     a token that the reply ends with, so that the caller can tell it from the reply to any other call
returns         doubles in one string: status (0 denied, 1 allowed), the time, units granted, how many keys
                of a foreign type were cleared, the wait (of a refusal: what it would have been); then for each limit its verdict (0 or 1), used, remaining,
                retry_after (below 0: never), reset_after, wait, and the moment from which the units count that a hit
                took (0: it took none), by which they are given back. Times and waits are microseconds.
                A stale caller gets the text `stale ` and the current revision, written as ARGV[2] is; no doubles begin
                so. One who knows another tag than a subject's gets, as an array, what is written about each subject.
                The token is the end of the string, or the last element of the array.
]]

local count, token = #KEYS, ARGV[#ARGV]

if revision ~= '' then
  count = count - 1
  local first = 5 + 2 * count
  local subjects = (#ARGV - first) / 2
  local written = rcall('HMGET', KEYS[count + 1], 'revision', spread(ARGV, first, first + subjects - 1))
  local current = table.remove(written, 1) or '0'
  if current ~= revision then return 'stale ' .. current .. token end
  for i = 1, subjects do
    if string.sub(written[i] or '', 1, 16) ~= ARGV[first + subjects - 1 + i] then
      written[subjects + 1] = token
      return written
    end
  end
end

if clock == '' then
  local seconds = rcall('TIME')
  now = seconds[1] * 1000000 + seconds[2]
else
  -- Nobody promises that a caller's clock and the expiry clock agree: keep the state a minute longer.
  now, slack = tonumber(clock), 60000000
end

local charges = {}
for i = 1, count do
  local record = ARGV[4 + 2 * i]
  local cost, shadow, count_denied, max_wait, limit, period, a, b, c, d, e, f = unpack('<dddddddddddd', record)
  local more = #record > 96 and string.sub(record, 97) or ''
  local at, take, give, numbers, beyond = open(ARGV[3 + 2 * i], KEYS[i], limit, period, a, b, c, d, e, f, more)
  charges[i] = {cost = cost, shadow = shadow, count_denied = count_denied, max_wait = max_wait,
                at = at, take = take, give = give, numbers = numbers, beyond = beyond,
                departs = now, accepts = now, allowed = true}
end

-- Look: when could this cost go, and when would it be accepted? Nothing is written.
local function decide(charge, cost)
  local at, accepts = charge.at(cost)
  if not at then return nil end
  accepts = accepts or now
  if charge.max_wait >= 0 and at - charge.max_wait > accepts then accepts = at - charge.max_wait end
  return at, accepts
end

local function look(charge)
  -- A cost of 0 asks what a cost of 1 would be told.
  local at, accepts = decide(charge, charge.cost > 0 and charge.cost or 1)
  charge.departs, charge.accepts, charge.allowed = at, accepts, at and accepts <= now
end

local granted, denied, departs, is_bounded = 0, false, now, false

-- Other limits may hold it for longer than a calendar is told: nobody knows in which window it would count.
local function bound(charge)
  local told = charge.beyond and charge.departs and charge.beyond(departs)
  if told then charge.allowed, charge.accepts = false, math.max(told, charge.accepts) end
end

if op ~= 'refund' then
  if partial then
    local wanted
    for i = 1, count do
      local charge = charges[i]
      if charge.shadow == 0 then
        local _, room = charge.numbers()
        local at, accepts = decide(charge, 1)
        wanted = math.min(wanted or charge.cost, charge.cost, at and accepts <= now and room or 0)
      end
    end
    for i = 1, count do charges[i].cost = wanted and math.max(wanted, 1) or charges[i].cost end
  end
  for i = 1, count do
    local charge = charges[i]
    look(charge)
    if charge.cost > granted then granted = charge.cost end
    if charge.shadow == 0 then
      if not charge.allowed then denied = true end
      if charge.departs and charge.departs > departs then departs = charge.departs end
    end
    is_bounded = is_bounded or charge.beyond
  end
  if is_bounded then
    for i = 1, count do
      bound(charges[i])
      if charges[i].shadow == 0 and not charges[i].allowed then denied = true end
    end
  end
  if op == 'charge' then denied, departs = false, now end
  if denied then granted = 0 end
end

-- Commit: all, or nothing. Every limit is charged at the moment the request will go.
local answer = pack('<ddddd', denied and 0 or 1, now, granted, cleared, departs - now)
for i = 1, count do
  local charge = charges[i]
  local allowed, counted = charge.allowed, 0
  if op == 'refund' then
    charge.give(charge.cost)
  elseif op == 'charge' then
    charge.take(charge.cost, now, false)
    look(charge)
  elseif op == 'hit' and charge.cost > 0 then
    if not denied and allowed then
      counted = charge.take(charge.cost, charge.departs > departs and charge.departs or departs, false)
    elseif charge.count_denied == 1 then
      counted = charge.take(charge.cost, now, true)
      look(charge)
      bound(charge)
    end
  end
  local used, room, idle = charge.numbers()
  local retry, wait = 0, 0
  if not charge.allowed then retry = charge.accepts and charge.accepts - now or -1 end
  if charge.departs then wait = charge.departs - now end
  answer = answer .. pack('<ddddddd', allowed and 1 or 0, used, room, retry, idle > now and idle - now or 0, wait, counted)
end
return answer .. token
