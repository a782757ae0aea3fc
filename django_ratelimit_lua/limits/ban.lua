--[[
A ban: a client that offends too often is refused for a time. Its state is stored beside those of the limits.

An offence is a refusal by the limit, and counts until a window after it. Those that trigger a ban count no more once it
is over. The number of bans is forgotten when the last length has passed since the end of the last ban.

record          place, units, shadow, waits, after, window, lengths
                place: of the limit among those of the call; units: of `ban`, how long (0: as if it was triggered), of `unban`,
                1 to forget the number of bans, too; waits: 1 if a refusal is no offence, because the caller waits and asks
                again; after: so many within the window trigger a ban; lengths: of the first ban, the second, ...; the last
                is of each further one
state           integers of 7 bytes: clock and the end; of 4: how many offences led to the ban (0: made by hand), and the
                number of bans; then the moments of offences (7) since that ban, oldest first
promise         a client that offends `after` times within a window is banned once, the n-th time for the n-th length (or the
                last), and attempts meanwhile change nothing
]]
local function bounded(number)
  return number < 9007199254740991 and number or 9007199254740991
end

local function expire_in(idle_at)
  local milliseconds = math.floor((idle_at - now + slack) / 1000) + 1
  return milliseconds < 31536000000000 and milliseconds or 31536000000000
end

local function open_ban(key, record)
  local place, units, shadow, waits, after, window = unpack('<dddddd', record)
  local time, ends, count, times, rest, is_new = now, 0, 0, 0, '', 0
  local ban, header = {place = place, shadow = shadow == 1, waits = waits == 1}, '<I7I7I4I4'

  local function length(number)
    local at = 8 * number + 41
    if at > #record - 7 then at = #record - 7 end
    return (unpack('<d', record, at))
  end

  local function forgotten_at()
    return times > 0 and ends + unpack('<d', record, #record - 7) or 0
  end

  local function packed(clock)
    return pack(header, clock, ends, count, times) .. rest
  end

  local state, most = redis.pcall('GET', key), 9007199254740992
  if state and state.err then
    if not string.find(state.err, 'WRONGTYPE', 1, true) then error(state.err) end
    rcall('DEL', key)
    cleared, state = cleared + 1, nil
  end
  if state and #state >= 22 then
    local clock
    clock, ends, count, times = unpack(header, state)
    rest = string.sub(state, 23)
    if clock >= most or ends >= most or #rest % 7 ~= 0 then ends, count, times, rest, clock = 0, 0, 0, '', 0 end
    local back = clock - now
    if back > 60000000 then
      local function earlier(moment) return moment > back and moment - back or 0 end
      local moments = {}
      for offset = 1, #rest, 7 do moments[#moments + 1] = pack('<I7', earlier(unpack('<I7', rest, offset))) end
      clock, ends, rest = clock - back, earlier(ends), table.concat(moments)
      rcall('SET', key, packed(clock), 'KEEPTTL')
    end
    if clock > time then time = clock end
    if time >= forgotten_at() then times = 0 end
  end
  ban.ends = ends > time and ends or nil

  -- The offences that count, without those that do no more.
  local function prune()
    local offset = 1
    while offset < #rest and unpack('<I7', rest, offset) + window <= time do offset = offset + 7 end
    rest = string.sub(rest, offset)
    return #rest / 7
  end

  local function save()
    local idle_at = math.max(ends, forgotten_at())
    if rest ~= '' then idle_at = math.max(idle_at, unpack('<I7', rest, #rest - 6) + window) end
    if idle_at > time then
      rcall('SET', key, packed(time), 'PX', expire_in(idle_at))
    else
      rcall('DEL', key)
    end
    ban.ends = ends > time and ends or nil
  end

  -- When what could go at a moment goes, and when it is accepted: not before the ban ends.
  function ban.hold(moment, accepts)
    if not moment or not ban.ends then return moment, accepts end
    return math.max(moment, ban.ends), math.max(accepts, ban.ends)
  end

  -- During a ban there are no offences.
  function ban.offend()
    if ban.ends then return end
    local offences = prune() + 1
    rest = rest .. pack('<I7', time)
    if offences >= after then
      count, times, rest, is_new = offences, times + 1, '', 1
      ends = bounded(time + length(times))
    end
    save()
  end

  function ban.begin(us)
    if us == 0 then
      times = times + 1
      us = length(times)
    end
    ends, count, rest, is_new = bounded(time + us), 0, '', 1
    save()
  end

  function ban.lift(forgets)
    if forgets then
      ends, times = 0, 0
    elseif ban.ends then
      ends = time
    end
    rest = ''
    save()
  end

  -- Its end, the offences that led to it, the number of bans, and whether it is new. Without a ban, the offences that count.
  function ban.report()
    if ban.ends then return pack('<dddd', ends, count, times, is_new) end
    return pack('<dddd', 0, prune(), times, 0)
  end

  if op == 'ban' then
    ban.begin(units)
  elseif op == 'unban' then
    ban.lift(units == 1)
  end
  ban.holds = ban.ends ~= nil
  return ban
end

bans = {hold = false}
while count > 0 and ARGV[3 + 2 * count] == 'ban' do
  local ban = open_ban(KEYS[count], ARGV[4 + 2 * count])
  if ban.ends and not ban.shadow then bans.hold = true end
  bans[ban.place] = ban
  count = count - 1
end
