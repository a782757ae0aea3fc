--[[
Decides any number of limits, of any algorithms, all or nothing.

KEYS[1..n]      the state of each limit; then of each ban (see ban.lua), of those limits that have one; then, where there are
                any and it lives on this server, the register of bans: a sorted set of these keys by the ends of the bans
KEYS[n+1]       a hash: the current rules revision under `revision`, and what overrides say of a subject under the
                subject's digest, as a tag of 16 bytes and the rest; only when ARGV[2] is not empty
ARGV[1]         what to do: hit, peek, charge (take whatever the verdict is) or refund; or, and then look as a peek does:
                offend (offences that somebody else has found), ban or unban. What charges or refunds names no bans
ARGV[2]         the rules revision the caller decided by, as `<number>-<tag>` (the tag: 16 hexadecimal digits), or 0:
                none was ever published; empty: do not ask (the fence)
ARGV[3]         the time in microseconds; empty: this server's own clock. By a time of the caller's, keys are kept for a
                minute longer than they are worth; or for as many microseconds as stand behind it and a space
ARGV[4]         of a hit or peek, 1: grant as many units as there are, if not all; 2: a token bucket that owes no more than it
                holds grants any cost, and is in debt for what is beyond it; of a refund, the time of the hit
                whose units are given back (the latest, if empty); of a ban, why
ARGV[5..]       for each limit two arguments: the name of its algorithm, and its record, 12 doubles:
                cost, shadow (0 or 1), count_denied (0 or 1), max_wait in microseconds (below 0: any wait),
                limit, period in microseconds, and six numbers that its algorithm's file names; and as many
                more as that file may want for this call. For a ban `ban`, and the 7 to 14 doubles that ban.lua names; for the register
                `bans`, and nothing
ARGV[...]       only when ARGV[2] is not empty: the digests of the subjects, then the tag the caller knows for each
ARGV[#ARGV]     a token that the reply ends with, so that the caller can tell it from the reply to any other call
returns         doubles in one string: status (0 denied, 1 allowed), the time, units granted, how many keys
                of a foreign type were cleared, the wait (of a refusal: what it would have been); then for each limit its verdict (0 or 1), used, remaining,
                retry_after (below 0: never), reset_after, wait, and the moment from which the units count that a hit
                took (0: it took none), by which they are given back. Times and waits are microseconds. Then for each ban its
                end (0: there is none), since when, its first and its last offence, how many, how often there was one,
                by whom, and 1 where this call has begun it, 2 more where it was an offence.
                A stale caller gets the text `stale ` and the current revision, written as ARGV[2] is; no doubles begin
                so. One who knows another tag than a subject's gets, as an array, what is written about each subject.
                The token is the end of the string, or the last element of the array.
]]

-- A ban is looked at before anything else.
local bans, register, is_banned = {}, nil, false
if ARGV[3 + 2 * count] == 'bans' then register, count = KEYS[count], count - 1 end
local limits = count
while limits > 0 and ARGV[3 + 2 * limits] == 'ban' do limits = limits - 1 end
for i = limits + 1, count do
  bans[#bans + 1] = open_ban(KEYS[i], ARGV[4 + 2 * i], register)
end
for _, ban in ipairs(bans) do
  if ban.ends and not ban.shadow then is_banned = true end
end
count = limits

local entries, owes = {}, op ~= 'refund' and ARGV[4] == '2'
for i = 1, count do
  local record = ARGV[4 + 2 * i]
  local cost, shadow, count_denied, max_wait, limit, period, a, b, c, d, e, f = unpack('<dddddddddddd', record)
  local more = #record > 96 and string.sub(record, 97) or ''
  local when_allowed, charge, refund, report, beyond = open(
    ARGV[3 + 2 * i], KEYS[i], limit, period, a, b, c, d, e, f, more)
  entries[i] = {cost = cost, shadow = shadow, count_denied = count_denied, max_wait = max_wait,
                when_allowed = when_allowed, charge = charge, refund = refund, report = report, beyond = beyond,
                departs = now, accepts = now, allowed = true,
                owes = owes and limit > 0 and ARGV[3 + 2 * i] == 'token_bucket'}
end
for _, ban in ipairs(bans) do
  if ban.place > 0 then entries[ban.place].ban = ban end
end

-- Look: when could this cost go, and when would it be accepted? Nothing is written.
local function decide(entry, cost)
  local departs, accepts = entry.when_allowed(cost)
  if not departs then return nil end
  accepts = accepts or now
  if entry.max_wait >= 0 and departs - entry.max_wait > accepts then accepts = departs - entry.max_wait end
  return departs, accepts
end

-- Nothing goes before a ban ends, however short a wait would do without it.
local function hold(entry)
  local ends = entry.ban and entry.ban.ends
  if ends and entry.departs then
    entry.departs, entry.accepts = math.max(entry.departs, ends), math.max(entry.accepts, ends)
  end
end

local function look(entry)
  -- A cost of 0 asks what a cost of 1 would be told; of a cost that may be owed, nothing has to fit.
  local cost = entry.cost > 0 and entry.cost or 1
  if entry.owes then cost = 0 end
  entry.departs, entry.accepts = decide(entry, cost)
  hold(entry)
  entry.allowed = entry.departs and entry.accepts <= now
end

local granted, denied, departs, is_bounded = 0, false, now, false

-- Other limits may hold it for longer than a calendar is told: nobody knows in which window it would count.
local function bound(entry)
  local known_at = entry.beyond and entry.departs and entry.beyond(departs)
  if known_at then entry.allowed, entry.accepts = false, math.max(known_at, entry.accepts) end
end

if op ~= 'refund' then
  if ARGV[4] == '1' then
    local fitting
    for i = 1, count do
      local entry = entries[i]
      if entry.shadow == 0 then
        local _, room = entry.report()
        local at, accepts = decide(entry, 1)
        local fits = at and accepts <= now and not (entry.ban and entry.ban.ends)
        fitting = math.min(fitting or entry.cost, entry.cost, fits and room or 0)
      end
    end
    for i = 1, count do entries[i].cost = fitting and math.max(fitting, 1) or entries[i].cost end
  end
  for i = 1, count do
    local entry = entries[i]
    look(entry)
    if entry.cost > granted then granted = entry.cost end
    if entry.shadow == 0 then
      if not entry.allowed then denied = true end
      if entry.departs and entry.departs > departs then departs = entry.departs end
    end
    is_bounded = is_bounded or entry.beyond
  end
  if is_bounded then
    for i = 1, count do
      bound(entries[i])
      if entries[i].shadow == 0 and not entries[i].allowed then denied = true end
    end
  end
  for i = 1, op == 'hit' and count or 0 do
    local entry, ban = entries[i], entries[i].ban
    if ban and entry.cost > 0 and (ban.holds or not (is_banned or entry.allowed) and ban.on == 0) then
      ban.offend(1)
      hold(entry)
      if entry.shadow == 0 and entry.departs and entry.departs > departs then departs = entry.departs end
    end
  end
  if op == 'charge' then denied, departs = false, now end
  if denied then granted = 0 end
end

-- Commit: all, or nothing. Every limit is charged at the moment the request will go.
local answer = pack('<ddddd', denied and 0 or 1, now, granted, cleared, departs - now)
for i = 1, count do
  local entry = entries[i]
  local allowed, counted = entry.allowed, 0
  if op == 'refund' then
    entry.refund(entry.cost)
  elseif op == 'charge' then
    counted = entry.charge(entry.cost, now, false)
    look(entry)
  elseif op == 'hit' and entry.cost > 0 then
    if not denied and allowed then
      counted = entry.charge(entry.cost, entry.departs > departs and entry.departs or departs, false)
    elseif entry.count_denied == 1 and not (is_banned or entry.ban and entry.ban.holds) then
      counted = entry.charge(entry.cost, now, true)
      look(entry)
      bound(entry)
    end
  end
  if counted ~= 0 and entry.ban and entry.ban.on == 1 then
    entry.ban.offend(1)
    if denied and entry.ban.ends then
      hold(entry)
      entry.allowed = false
    end
  end
  local used, room, idle_at = entry.report()
  local ends = entry.ban and entry.ban.ends
  if ends then room, idle_at = 0, math.max(idle_at, ends) end
  local retry, wait = 0, 0
  if not entry.allowed then retry = entry.accepts and entry.accepts - now or -1 end
  if entry.departs then wait = entry.departs - now end
  local reset = idle_at > now and idle_at - now or 0
  answer = answer .. pack('<ddddddd', allowed and 1 or 0, used, room, retry, reset, wait, counted)
end
for _, ban in ipairs(bans) do answer = answer .. ban.report() end
return answer .. token
