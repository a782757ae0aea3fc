--[[
Decides the limits of one call, all or nothing.

KEYS[1..n]  the state of each limit; that of a limit with a ban is followed by that of the ban; last, if ARGV[2] is set, the published rules
ARGV[1]     operation: hit, peek, charge (take, whatever the verdict), refund, ban or unban
ARGV[2]     the revision of the rules that the caller uses; empty: it is not compared
ARGV[3]     the time in microseconds; empty: this server's time
ARGV[4]     of a hit: "partial", "debt" or empty; of a refund: the moment of the hit
ARGV[5..]   a record for each state: algorithm, cost, is_shadow, counts_denied, max_wait (negative: any), capacity, then the numbers that
            its file names; last a token, which ends the reply
returns     doubles: allowed, now, granted, wait; for each state: used (of a bucket, with a fraction), retry_after (0: allowed, -1: never),
            reset_after, wait, counted_at (0: nothing was counted), and of a ban the number of bans. Or "stale " and the revision
]]
local operation, mode = ARGV[1], ARGV[4]
local states, now = #KEYS, nil
local extra_ttl = 1 -- milliseconds
local algorithms = {}

--[[ Each algorithm has these functions. A verdict is {accepted_from: when such a hit is accepted, goes_at: when it goes if it is accepted,
used, free_at: when nothing is used any more}. Functions that return a state have brought `used` and `free_at` up to date.
  check(key, record, now, cost) -> verdict                       take(key, record, now, cost, verdict, goes_at) -> state, counted_at
  refund(key, record, now, cost, verdict, hit_at) -> state       and of bans: ban, unban ]]
-- algorithms

-- 1. Compare the revision.
if ARGV[2] ~= '' then
  local current = redis.call('HGET', KEYS[states], 'revision') or '0'
  if current ~= ARGV[2] then return 'stale ' .. current .. ARGV[#ARGV] end
  states = states - 1
end

-- 2. Read the time. Redis expires keys by its own clock: if the caller's decides, a state is kept a minute longer than it counts.
if ARGV[3] == '' then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now, extra_ttl = tonumber(ARGV[3]), 60000
end

-- A partial hit takes from each limit what all enforced limits have left; or 1, which is refused then.
local partial = nil
for i = 1, mode == 'partial' and states or 0 do
  local place, cost, is_shadow, _, _, capacity = struct.unpack('<dddddd', ARGV[4 + i])
  local left = capacity - math.ceil(algorithms[place].check(KEYS[i], ARGV[4 + i], now, 1).used)
  if is_shadow == 0 then partial = math.max(math.min(partial or cost, cost, left), 1) end
end

-- 3. Check every limit, and take nothing. A cost of 0 gets the verdict on a cost of 1.
local verdicts, allowed, goes_at, is_banned, granted = {}, true, now, false, 0
for i = 1, states do
  local place, cost, is_shadow = struct.unpack('<ddd', ARGV[4 + i])
  cost = partial or cost
  local verdict = algorithms[place].check(KEYS[i], ARGV[4 + i], now, cost > 0 and cost or 1)
  if is_shadow == 0 then
    allowed = allowed and verdict.accepted_from <= now
    is_banned = is_banned or (verdict.is_ban and verdict.accepted_from > now)
    if verdict.goes_at > goes_at then goes_at = verdict.goes_at end
  end
  if cost > granted then granted = cost end
  verdicts[i] = verdict
end
if operation == 'charge' then allowed, goes_at = true, now end

-- 4. Allowed: every limit that fits takes, at the moment when the hit goes. Refused: limits that count refusals take now.
local answers, is_free = '', true
for i = 1, states do
  local key, record, verdict, state, counted_at = KEYS[i], ARGV[4 + i], verdicts[i], nil, 0
  local place, cost, is_shadow, counts_denied = struct.unpack('<dddd', record)
  local algorithm, fits = algorithms[place], verdict.accepted_from <= now
  cost = partial or cost
  local takes, counts_refusal = false, operation == 'hit' and cost > 0 and counts_denied == 1 and not is_banned
  if verdict.is_ban then -- A refusal by the limit before it is an offence.
    counts_refusal = counts_refusal and fits and verdicts[i - 1].accepted_from > now
  else
    takes = cost > 0 and (operation == 'charge' or operation == 'hit' and allowed and fits)
    counts_refusal = counts_refusal and not takes
  end
  if takes or counts_refusal then
    state, counted_at = algorithm.take(key, record, now, cost, verdict, takes and goes_at or now)
  elseif algorithm[operation] then -- refund, ban or unban
    state, counted_at = algorithm[operation](key, record, now, cost, verdict, mode)
  end
  if state then redis.call('SET', key, state, 'PX', math.ceil((verdict.free_at - now) / 1000) + extra_ttl) end
  if counts_refusal or operation ~= 'hit' and operation ~= 'peek' then verdict = algorithm.check(key, record, now, math.max(cost, 1)) end

  -- 5. Answer.
  is_free = is_free and (is_shadow == 1 or verdict.accepted_from <= now)
  local retry_after = verdict.accepted_from - now
  if retry_after == math.huge then retry_after = -1 end
  answers = answers .. struct.pack('<ddddd', verdict.used, retry_after, verdict.free_at - now, verdict.goes_at - now, counted_at or 0)
  if verdict.is_ban then answers = answers .. struct.pack('<d', verdict.times) end
end
-- Other operations are answered whether the next hit would be allowed.
if operation ~= 'hit' and operation ~= 'charge' then allowed, granted = is_free, 0 end
return struct.pack('<dddd', allowed and 1 or 0, now, allowed and granted or 0, goes_at - now) .. answers .. ARGV[#ARGV]
