--[[
A ban: a client that offends too often is refused for a time. Its state is stored beside those of the limits.

An offence counts until a window after it. Those that earn a ban count no more once it is over. The number of bans is
forgotten when the last length has passed since the end of the last ban. A ban that was earned ends earlier if its limit is
edited and would now ban for less; one by hand ends when it was said to.

record          place, units, shadow, on, after, window, lengths
                place: of the limit among those of the call; units: of `offend`, the offences, of `ban`, how long (0: as if it
                was earned), of `unban`, 1 to forget the number of bans, too; on: what is an offence: 0 what the limit refuses,
                1 what it counts, 2 neither; after: so many within the window earn a ban; lengths: of the first ban, the
                second, ...; the last is of each further one
state           integers of 7 bytes: clock, the end, when it was earned, its first and its last offence; of 4: how many,
                and the number of bans; of 1: by whom (0 earned, 1 by hand); then the moments of offences (7) since that
                ban, oldest first, or of a ban by hand why
promise         a client that offends `after` times within a window is banned once, the n-th time for the n-th length (or the
                last), and attempts meanwhile change nothing
]]
local register

local function clear(key, reply)
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply.err) end
  rcall('DEL', key)
  cleared = cleared + 1
end

local function bounded(number)
  return number < 9007199254740991 and number or 9007199254740991
end

local function expire_in(idle_at)
  local milliseconds = math.floor((idle_at - now + slack) / 1000) + 1
  return milliseconds < 31536000000000 and milliseconds or 31536000000000
end

local function open_ban(key, record)
  local place, units, shadow, on, after, window = unpack('<dddddd', record)
  local time, ends, since, first, last, count, times, by, rest = now, 0, 0, 0, 0, 0, 0, 0, ''
  local ban, header, is_new = {place = place, shadow = shadow == 1, on = on}, '<I7I7I7I7I7I4I4I1', 0
  local is_offence = 0

  local function length(number)
    local at = 8 * number + 41
    if at > #record - 7 then at = #record - 7 end
    return (unpack('<d', record, at))
  end

  local function forgotten_at()
    return times > 0 and ends + unpack('<d', record, #record - 7) or 0
  end

  local function packed(clock)
    return pack(header, clock, ends, since, first, last, count, times, by) .. rest
  end

  local state, most = redis.pcall('GET', key), 9007199254740992
  if state and state.err then state = clear(key, state) end
  if state and #state >= 44 then
    local clock
    clock, ends, since, first, last, count, times, by = unpack(header, state)
    rest = string.sub(state, 45)
    local is_ours = clock < most and ends < most and since < most and first < most and last < most and by < 2
      and (by == 1 or #rest % 7 == 0)
    if not is_ours then ends, since, first, last, count, times, by, rest, clock = 0, 0, 0, 0, 0, 0, 0, '', 0 end
    local back = clock - now
    if back > 60000000 then
      local function earlier(moment) return moment > back and moment - back or 0 end
      clock, ends, since, first, last = clock - back, earlier(ends), earlier(since), earlier(first), earlier(last)
      if by == 0 then
        local moments = {}
        for offset = 1, #rest, 7 do moments[#moments + 1] = pack('<I7', earlier(unpack('<I7', rest, offset))) end
        rest = table.concat(moments)
      end
      rcall('SET', key, packed(clock), 'KEEPTTL')
      local evidence = key .. ':evidence'
      local kept = redis.pcall('HGETALL', evidence)
      for i = 1, #kept, 2 do
        local moment, number = string.match(kept[i], '^(%d+)(:%d+)$')
        if moment then
          rcall('HDEL', evidence, kept[i])
          rcall('HSET', evidence, string.format('%017.0f', earlier(tonumber(moment))) .. number, kept[i + 1])
        end
      end
    end
    if clock > time then time = clock end
    if by == 0 and ends > time and times > 0 then
      local by_now = last + length(times)
      if by_now < ends then
        ends = by_now
        rcall('SET', key, packed(clock), 'KEEPTTL') -- A later edit does not prolong it.
      end
    end
    if time >= forgotten_at() then times = 0 end
  end
  ban.ends = ends > time and ends or nil

  -- The offences that count, without those that do no more.
  local function prune()
    if by == 1 then by, rest = 0, '' end
    local offset = 1
    while offset < #rest and unpack('<I7', rest, offset) + window <= time do offset = offset + 7 end
    rest = string.sub(rest, offset)
    return #rest / 7
  end

  local function save()
    local idle_at = math.max(ends, forgotten_at())
    if by == 0 and rest ~= '' and last + window > idle_at then idle_at = last + window end
    if idle_at > time then
      rcall('SET', key, packed(time), 'PX', expire_in(idle_at))
    else
      rcall('DEL', key)
    end
  end

  -- It begins or ends at another time than was known; that many are known at once which end last.
  local function tell()
    ban.ends = ends > time and ends or nil
    if not register then return end
    local removed = redis.pcall('ZREMRANGEBYSCORE', register, '-inf', string.format('%.0f', now))
    if type(removed) == 'table' then clear(register, removed) end
    if ban.ends then
      rcall('ZADD', register, string.format('%.0f', ends), key)
      rcall('ZREMRANGEBYRANK', register, 0, -10001)
    else
      rcall('ZREM', register, key)
    end
    local final = rcall('ZRANGE', register, -1, -1, 'WITHSCORES')[2]
    if final then rcall('PEXPIRE', register, expire_in(tonumber(final))) end
  end

  -- When what could go at a moment goes, and when it is accepted: not before the ban ends.
  function ban.hold(moment, accepts)
    if not moment or not ban.ends then return moment, accepts end
    return math.max(moment, ban.ends), math.max(accepts, ban.ends)
  end

  -- So many offences at once. During a ban there are none.
  function ban.offend(more)
    if ban.ends then return end
    local before, moments = prune(), {}
    for i = 1, more < after and more or after do moments[i] = pack('<I7', time) end
    rest, last, is_offence = rest .. table.concat(moments), time, 2
    if before + more >= after then
      since, first, count = time, unpack('<I7', rest), before + more
      if count > 4294967295 then count = 4294967295 end
      times, rest, is_new = times + 1, '', 1
      ends = bounded(time + length(times))
      save()
      tell()
    else
      save()
    end
  end

  function ban.begin(us, why)
    if us == 0 then
      times = times + 1
      us = length(times)
    end
    ends, since, first, count, by, rest, is_new = bounded(time + us), time, 0, 0, 1, why, 1
    save()
    tell()
  end

  function ban.lift(forgets)
    if forgets then
      ends, last, times = 0, 0, 0
    elseif ban.ends then
      ends = time
    end
    by, rest = 0, ''
    save()
    tell()
  end

  -- Until when, since when, its first and its last offence, how many, how often before, who made it,
  -- and 1 if it is new, 2 more if this call was an offence. Without a ban, the offences that count.
  function ban.report()
    if ban.ends then return pack('<dddddddd', ends, since, first, last, count, times, by, is_new + is_offence) end
    local offences = prune()
    local earliest = offences > 0 and unpack('<I7', rest) or 0
    return pack('<dddddddd', 0, 0, earliest, offences > 0 and last or 0, offences, times, 0, is_offence)
  end

  if op == 'offend' and units > 0 then
    ban.offend(units)
  elseif op == 'ban' then
    ban.begin(units, ARGV[4])
  elseif op == 'unban' then
    ban.lift(units == 1)
  end
  ban.holds = ban.ends ~= nil
  return ban
end

bans = {hold = false}
if ARGV[3 + 2 * count] == 'bans' then
  register = KEYS[count]
  count = count - 1
end
while count > 0 and ARGV[3 + 2 * count] == 'ban' do
  local ban = open_ban(KEYS[count], ARGV[4 + 2 * count])
  if ban.ends and not ban.shadow then bans.hold = true end
  bans[ban.place] = ban
  count = count - 1
end
