--[[
Decides the state of one circuit breaker for all processes, by the clock of the server. Times are in microseconds.

KEYS[1]       the state of the breaker, a hash
ARGV[1..3]    the time (empty: this server's); the version that the process has received last; the state to restore with it
ARGV[4..5]    the calls of the process since its last report, and the failed ones among them, all allowed by that version
ARGV[6..7]    a result: `ok` or `failed` of a probe, `failed` of the last failure in a row, or empty; the version that allowed the call
ARGV[8..11]   1 to request a probe, else 0; a tenth of the window; minimum; failure ratio in parts per million (0: none)
ARGV[12..15]  open_for; probes; the channel and the message of a change
state         state, version (the number of changes), until, granted and succeeded (probes), counts (by tenth of the window)
until         open: when probes begin; half-open: when probes that have not ended lose their places; closed: unused
restored      a change that Redis has lost; closed as well, because a process that missed that change would restore open
returns       state, version, time until a probe may be requested; 1 if one was granted; 1 if this call changed the state
promise       a breaker that is not closed allows at most `probes` calls in any interval of `open_for`
]]
local known_version, asks, width, minimum = tonumber(ARGV[2]), ARGV[8] == '1', tonumber(ARGV[9]), tonumber(ARGV[10])
local ratio, open_for, probes = tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
local clock = redis.call('TIME')
local now = tonumber(ARGV[1]) or clock[1] * 1000000 + clock[2]
local fields = redis.call('HMGET', KEYS[1], 'state', 'version', 'until', 'granted', 'succeeded', 'counts')
local state, version, ends = fields[1] or 'closed', tonumber(fields[2] or 0), tonumber(fields[3] or 0)
local granted, succeeded, counts = tonumber(fields[4] or 0), tonumber(fields[5] or 0), cjson.decode(fields[6] or '{}')
local stored, is_probe, wait = version, 0, 0

local function change_to(name, new_version)
  state, version, ends = name, new_version, now + open_for
  granted, succeeded, counts = 0, 0, {}
end

local function is_failing(calls, failures)
  local part, total, failed = math.floor(now / width), 0, 0
  local current = counts[tostring(part)] or {0, 0}
  counts[tostring(part)] = {current[1] + calls, current[2] + failures}
  for name, count in pairs(counts) do
    local age = part - name
    if age < 0 or age >= 10 then counts[name] = nil else total, failed = total + count[1], failed + count[2] end
  end
  return ratio > 0 and total >= minimum and failed * 1000000 >= ratio * total
end

if known_version > version then change_to(ARGV[3], known_version) end
ends = math.min(ends, now + open_for) -- The clock may have been set back.
local result = tonumber(ARGV[7]) == version and ARGV[6] or ''
local is_current = state == 'closed' and known_version == version
if (is_current and is_failing(ARGV[4], ARGV[5])) or (result == 'failed' and state ~= 'open') then
  change_to('open', version + 1)
elseif result == 'ok' and state == 'half-open' then
  succeeded = succeeded + 1
  if succeeded >= probes then change_to('closed', version + 1) end
end
if asks and state == 'open' and now >= ends then change_to('half-open', version + 1) end
-- One place is left at least, because another process may have counted more successes, with a higher `probes`.
if asks and state == 'half-open' and granted >= probes and now >= ends then granted = math.min(succeeded, probes - 1) end
if asks and state == 'half-open' and granted < probes then granted, is_probe, ends = granted + 1, 1, now + open_for end
if state == 'open' or granted >= probes then wait = math.max(0, ends - now) end
redis.call('HSET', KEYS[1], 'state', state, 'version', version, 'until', ends, 'granted', granted, 'succeeded', succeeded,
  'counts', cjson.encode(counts))
redis.call('PEXPIRE', KEYS[1], math.ceil((10 * width + open_for) / 1000) + 86400000)
if version ~= stored then redis.pcall('PUBLISH', ARGV[14], ARGV[15]) end
return {state, version, wait, is_probe, version ~= stored and 1 or 0}
