--[[
Counts the outcomes of calls under one circuit breaker, and is the only place that changes its state. So each change happens once, by the
clock of the server.

KEYS[1]       the state, a hash (below)
KEYS[2]       probes in progress, a sorted set: unguessable id, scored by the moment at which the probe expires
ARGV[1]       the time in microseconds; empty: this server's time
ARGV[2]       operation: `ask` (request a probe), `done` (a probe has ended), `hung` (a probe is slow and has not ended: it is judged, and
              keeps its slot); any other counts outcomes and renews probes
ARGV[3..10]   thresholds: window, width of a bucket, first pause, longest pause, lifetime of a probe (all in microseconds), number of
              probes, minimum number of calls, failures (0: no such threshold)
ARGV[11..12]  ratios of failures and of slow calls, in millionths (0: no such threshold)
ARGV[13]      a random number from 0 to 999, which makes a pause up to a tenth longer, so that not all pauses end together
ARGV[14..15]  the channel on which a change is published, and its message
ARGV[16..17]  of `ask`: the id of the probe; of `done` and `hung`: the id, and the result: `ok`, `failed` or `none`; of any other
              operation: the ids of the probes that run in this process, separated by spaces
ARGV[18]      the era in which the calls were allowed; outcomes of an earlier era are not counted
ARGV[19..21]  outcomes since the last report of the process: calls, failures, slow calls
state         `state` (closed, open, half-open), `era` (how many times it has opened), `since`, `until`, `pause`, `successes`, `seen` and
              `shift` (a clock that is set back continues from its latest time), `why` and `opened` (reason and numbers of the last
              opening), and buckets: `b<start>:<width>` = last moment, calls, failures, slow calls
returns       state, era, microseconds until it changes or a probe may be requested, calls, failures and slow calls in the window, 1 if the
              probe was granted; then for each change by this call: opened, half_open or closed; calls, failures, slow calls; the reason
]]

local window, width, pause_first, pause_most = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local probe_life, probes = tonumber(ARGV[7]), tonumber(ARGV[8])
local minimum, most_failures = tonumber(ARGV[9]), tonumber(ARGV[10])
local failure_ppm, slow_ppm, chance = tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
local CLOCKS_DIFFER = 60000000

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local kept, buckets = {}, {}
local pairs_of = redis.call('HGETALL', KEYS[1])
for i = 1, #pairs_of, 2 do
  local name, value = pairs_of[i], pairs_of[i + 1]
  if string.sub(name, 1, 1) == 'b' then
    local last, calls, failures, slow = string.match(value, '^(%d+) (%d+) (%d+) (%d+)$')
    buckets[name] = {tonumber(last), tonumber(calls), tonumber(failures), tonumber(slow)}
  else
    kept[name] = value
  end
end
local function number(name) return tonumber(kept[name] or '0') end
local state, era, since, ends = kept.state or 'closed', number('era'), number('since'), number('until')
local pause, successes, seen, shift = number('pause'), number('successes'), number('seen'), number('shift')
local why, opened, has_changed = kept.why or '', kept.opened or '', false
now = now + shift
if now < seen then
  -- The clocks of processes differ by some seconds. These differences must not add up.
  if ARGV[1] == '' or seen - now > CLOCKS_DIFFER then shift = shift + seen - now end
  now = seen
end
seen = now

local changed, gone, events = {}, {}, {}
local function whole(value) return string.format('%.0f', value) end
local function later(time) return now + time + math.floor(time * chance / 10000) end

local function sums()
  local calls, failures, slow = 0, 0, 0
  for name, bucket in pairs(buckets) do
    if bucket[1] > now - window then
      calls, failures, slow = calls + bucket[2], failures + bucket[3], slow + bucket[4]
    else
      gone[#gone + 1] = name
      buckets[name] = nil
    end
  end
  return calls, failures, slow
end

local function forget()
  for name in pairs(buckets) do gone[#gone + 1] = name end
  buckets, changed = {}, {}
end

local function event(name, calls, failures, slow, reason)
  events[#events + 1] = {name, calls, failures, slow, reason}
  has_changed = true
end

local function open(reason, calls, failures, slow)
  if state == 'closed' then
    pause = pause_first
  else
    pause = math.max(pause_first, math.min(pause * 2, pause_most))
  end
  state, era, since, ends, successes = 'open', era + 1, now, later(pause), 0
  why, opened = reason, whole(calls) .. ' ' .. whole(failures) .. ' ' .. whole(slow)
  forget()
  event('opened', calls, failures, slow, reason)
end

local function reason_of(calls, failures, slow)
  if most_failures > 0 and failures >= most_failures then return 'failures' end
  if calls < minimum then return nil end
  if failure_ppm > 0 and failures * 1000000 >= failure_ppm * calls then return 'failure_ratio' end
  if slow_ppm > 0 and slow * 1000000 >= slow_ppm * calls then return 'slow_ratio' end
end

-- A pause that began under a longer maximum is cut to the present one.
if state == 'open' then ends = math.min(ends, since + math.floor(pause_most * 11 / 10)) end

if tonumber(ARGV[18]) == era and state == 'closed' then
  if tonumber(ARGV[19]) + tonumber(ARGV[20]) + tonumber(ARGV[21]) > 0 then
    local name = 'b' .. whole(math.floor(now / width) * width) .. ':' .. whole(width)
    local bucket = buckets[name] or {0, 0, 0, 0}
    bucket[1] = now
    for field = 1, 3 do bucket[field + 1] = bucket[field + 1] + tonumber(ARGV[18 + field]) end
    buckets[name], changed[name] = bucket, true
  end
  local calls, failures, slow = sums()
  local reason = reason_of(calls, failures, slow)
  if reason then open(reason, calls, failures, slow) end
end

local granted = 0
if ARGV[2] == 'done' then redis.call('ZREM', KEYS[2], ARGV[16]) end
if ARGV[2] == 'done' or ARGV[2] == 'hung' then
  if state == 'half-open' and tonumber(ARGV[18]) == era then
    if ARGV[17] == 'failed' then
      open('probe', successes + 1, 1, 0)
    elseif ARGV[17] == 'ok' then
      successes = successes + 1
      if successes >= probes then
        state, since, pause, ends = 'closed', now, 0, 0
        forget()
        event('closed', successes, 0, 0, '')
      end
    end
  end
elseif ARGV[2] == 'ask' then
  if state == 'open' and now >= ends then
    state, since, ends, successes = 'half-open', now, 0, 0
    event('half_open', 0, 0, 0, '')
  end
  if state == 'half-open' then
    redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', whole(now))
    if redis.call('ZCARD', KEYS[2]) + successes < probes then
      redis.call('ZADD', KEYS[2], whole(now + probe_life), ARGV[16])
      redis.call('PEXPIRE', KEYS[2], math.ceil(probe_life / 500))
      granted = 1
    end
  end
elseif ARGV[2] == 'tell' and ARGV[16] ~= '' then
  for probe in string.gmatch(ARGV[16], '%S+') do
    redis.call('ZADD', KEYS[2], 'XX', whole(now + probe_life), probe)
  end
  redis.call('PEXPIRE', KEYS[2], math.ceil(probe_life / 500))
end

local wait = 0
if state == 'open' then
  wait = ends - now
elseif state == 'half-open' then
  local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]
  wait = first and tonumber(first) - now or 0
end

local calls, failures, slow = sums()
local written = {'state', state, 'era', whole(era), 'since', whole(since), 'until', whole(ends),
  'pause', whole(pause), 'successes', whole(successes), 'seen', whole(seen), 'shift', whole(shift),
  'why', why, 'opened', opened}
for name in pairs(changed) do
  local bucket = buckets[name]
  if bucket then
    written[#written + 1] = name
    written[#written + 1] = whole(bucket[1]) .. ' ' .. whole(bucket[2]) .. ' ' .. whole(bucket[3]) .. ' ' .. whole(bucket[4])
  end
end
redis.call('HSET', KEYS[1], unpack(written))
if #gone > 0 then redis.call('HDEL', KEYS[1], unpack(gone)) end
-- A missing key is a closed breaker without outcomes, so a closed state is kept a day longer than its window, and any other for a week
-- after its pause. Names may contain data, so each key must expire.
redis.call('PEXPIRE', KEYS[1], state == 'closed' and math.ceil(window / 500) + 86400000
  or math.ceil(math.max(0, ends - now) / 1000) + 604800000)
if has_changed then redis.pcall('PUBLISH', ARGV[14], ARGV[15]) end
return {state, era, math.max(0, wait), calls, failures, slow, granted, unpack(events)}
