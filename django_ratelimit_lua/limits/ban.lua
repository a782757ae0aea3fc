--[[
A ban: who offends too often is refused for a time, which grows with every ban. Its state stands beside those of the limits.

An offence counts until a window after it. Those that earn a ban count no more once it is over. How often somebody was
banned is forgotten when so long was free of both offences and bans. A ban that was earned ends earlier where its limit is
edited and would now ban for less; one by hand ends when it was said to.

record          place, units, shadow, on, after, window, duration, factor, longest, forget, renew
                place: of the limit among those of the call; units: of `offend`, the offences, of `ban`, how long (0: as if it
                was earned), of `unban`, 1 to forget how often, too; on: what is an offence: 0 what the limit refuses, 1 what it
                counts, 2 neither; after: so many within the window earn a ban; renew: 1 if attempts begin it anew
state           integers of 7 bytes: clock, the end, when it was earned, its first and its last offence; of 4: how many,
                and how often banned; of 1: by whom (0 earned, 1 by hand); then the moments of offences (7) since that
                ban, oldest first, or of a ban by hand why
promise         whoever offends `after` times within a window is banned once, until min(duration * factor ^ times,
                longest) after the last of them, and attempts meanwhile change nothing, unless they renew it
]]
local function open_ban(key, record, register)
  local place, units, shadow, on, after, window, shortest, factor, longest, forget, renew = unpack('<ddddddddddd', record)
  local time, ends, since, first, last, count, times, by, rest = now, 0, 0, 0, 0, 0, 0, 0, ''
  local ban, header, is_new = {place = place, shadow = shadow == 1, on = on}, '<I7I7I7I7I7I4I4I1', 0
  local is_offence = 0

  local function duration()
    local us, left = shortest, times
    while left > 0 and us < longest and factor > 1 do us, left = floor(us * factor), left - 1 end
    return us < longest and us or longest
  end

  local function packed(clock)
    return pack(header, clock, ends, since, first, last, count, times, by) .. rest
  end

  local state, most = checked(redis.pcall('GET', key), key), 9007199254740992
  if state and #state >= 44 then
    local clock
    clock, ends, since, first, last, count, times, by = unpack(header, state)
    rest = string.sub(state, 45)
    local is_ours = clock < most and ends < most and since < most and first < most and last < most and by < 2
      and (by == 1 or #rest % 7 == 0)
    if not is_ours then ends, since, first, last, count, times, by, rest, clock = 0, 0, 0, 0, 0, 0, 0, '', 0 end
    local back = clock_regression(clock)
    if back > 0 then
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
      times = times - 1
      local by_now = last + duration()
      times = times + 1
      if by_now < ends then ends = by_now end
    end
    if times > 0 and time >= (last > ends and last or ends) + forget then times = 0 end
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
    local idle_at = ends
    if times > 0 then idle_at = (last > ends and last or ends) + forget end
    if by == 0 and rest ~= '' and last + window > idle_at then idle_at = last + window end
    write(key, packed(time), idle_at, time)
  end

  -- It begins or ends at another time than was known; that many are known at once which end last.
  local function tell()
    ban.ends = ends > time and ends or nil
    if not register then return end
    checked(redis.pcall('ZREMRANGEBYSCORE', register, '-inf', string.format('%.0f', now)), register)
    if ban.ends then
      rcall('ZADD', register, string.format('%.0f', ends), key)
      rcall('ZREMRANGEBYRANK', register, 0, -10001)
    else
      rcall('ZREM', register, key)
    end
    local final = rcall('ZRANGE', register, -1, -1, 'WITHSCORES')[2]
    if final then rcall('PEXPIRE', register, lifetime(tonumber(final))) end
  end

  -- So many offences at once. During a ban there are none, but an attempt may begin it anew.
  function ban.offend(more)
    if ban.ends then
      if renew == 1 and by == 0 then
        times = times - 1
        last, ends, is_offence = time, bounded(time + duration()), 2
        times = times + 1
        save()
        tell()
        -- Whose ban it is, and why, is kept beside it, and as long.
        for _, name in ipairs({':told', ':evidence'}) do rcall('PEXPIRE', key .. name, lifetime(ends)) end
      end
      return
    end
    local before, moments = prune(), {}
    for i = 1, more < after and more or after do moments[i] = pack('<I7', time) end
    rest, last, is_offence = rest .. table.concat(moments), time, 2
    if before + more >= after then
      since, first, count = time, unpack('<I7', rest), before + more
      if count > 4294967295 then count = 4294967295 end
      ends, times, rest, is_new = bounded(time + duration()), times + 1, '', 1
      save()
      tell()
    else
      save()
    end
  end

  function ban.begin(us, why)
    if us == 0 then us, times = duration(), times + 1 end
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

  function ban.last() return last end

  -- Until when, since when, its first and its last offence, how many, how often before, by whom (and `whose`, on top of
  -- that), and 1 if it is new, 2 more if this call was an offence. Without a ban, the offences that count.
  function ban.report(whose)
    whose = whose or 0
    if ban.ends then return pack('<dddddddd', ends, since, first, last, count, times, by + whose, is_new + is_offence) end
    local offences = prune()
    local earliest = offences > 0 and unpack('<I7', rest) or 0
    return pack('<dddddddd', 0, 0, earliest, offences > 0 and last or 0, offences, times, whose, is_offence)
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

--[[
Two bans of one limit: a wide one, of an address, and one of the identity itself, which is earned in its place where more
signed-in users than `spare` were seen at the address. Whoever has either is banned.

users           the keys of HyperLogLogs, of the users seen there in each of the last hours; they are asked at an offence only
promise         whose offences are the identity's own alone earns no ban of the others, and has no ban of theirs lifted
]]
local function narrowed(wide, own, spare, users, offences)
  local both, is_own = {place = wide.place, shadow = wide.shadow, on = wide.on}, false

  local function see()
    both.ends, is_own = wide.ends, not wide.ends and own.last() > wide.last()
    if own.ends and own.ends > (wide.ends or 0) then both.ends, is_own = own.ends, true end
  end

  function both.offend(more)
    local is_shared = not both.ends and (checked(redis.pcall('PFCOUNT', unpack_args(users)), users[1]) or 0) > spare
    if is_shared or is_own and both.ends then own.offend(more) else wide.offend(more) end
    see()
  end

  function both.report()
    if is_own then return own.report(2) end
    return wide.report()
  end

  see()
  if op == 'offend' and offences > 0 then both.offend(offences) end
  both.holds = both.ends ~= nil
  return both
end
