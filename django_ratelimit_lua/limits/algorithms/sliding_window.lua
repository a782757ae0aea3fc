--[[
The units of the last period, counted in segments. A segment is forgotten one period after its last hit.

record   ..., capacity (the limit), period, length (of a segment), in microseconds
state    the units of all segments; the moment of the last hit of the newest segment, and its units; then the same of the older
         segments, the oldest first
promise  never more than `limit` units in any period; a unit is forgotten at most one segment late
]]
-- Hits that lie ahead of now, because the clock was set back, become hits of now; more than a minute ahead, all are forgotten.
local function set_back(key, now, state)
  local used, last, units = struct.unpack('<I7I7I7', state)
  if last > now + 60000000 then
    redis.call('DEL', key)
    return '', 0, 0, 0
  end
  local moved = struct.pack('<I7I7I7', used, now, units)
  for offset = 22, #state, 14 do
    local moment, older = struct.unpack('<I7I7', state, offset)
    moved = moved .. struct.pack('<I7I7', math.min(moment, now), older)
  end
  redis.call('SET', key, moved, 'KEEPTTL')
  return moved, used, now, units
end

local function check(key, record, now, cost)
  local limit, period = struct.unpack('<dd', record, 41)
  local state, used, last, units, first = redis.call('GET', key) or '', 0, 0, 0, 22
  if state ~= '' then used, last, units = struct.unpack('<I7I7I7', state) end
  if last > now then state, used, last, units = set_back(key, now, state) end
  if last + period <= now then state, used, last, units = '', 0, 0, 0 end
  while first < #state do
    local moment, gone = struct.unpack('<I7I7', state, first)
    if moment + period > now then break end
    used, first = used - gone, first + 14
  end
  local older = string.sub(state, first)
  local accepted_from, excess = now, used + cost - limit
  if cost > limit then
    accepted_from = math.huge
  elseif excess > 0 then
    accepted_from = last + period
    for offset = 1, #older, 14 do
      local moment, freed = struct.unpack('<I7I7', older, offset)
      excess = excess - freed
      if excess <= 0 then
        accepted_from = moment + period
        break
      end
    end
  end
  return {
    accepted_from = accepted_from, goes_at = accepted_from < math.huge and accepted_from or now,
    used = used, free_at = used > 0 and last + period or now,
    last = last, units = units, older = older,
  }
end

local function take(key, record, now, cost, verdict)
  local period, length = struct.unpack('<dd', record, 49)
  local units, older = cost, verdict.older
  if verdict.last >= now - now % length then
    units = units + verdict.units
  elseif verdict.units > 0 then
    older = older .. struct.pack('<I7I7', verdict.last, verdict.units)
  end
  verdict.used, verdict.free_at = verdict.used + cost, now + period
  return struct.pack('<I7I7I7', verdict.used, now, units) .. older, now
end

-- The units go back to the segment of their hit, if it still counts.
local function refund(key, record, now, cost, verdict, hit_at)
  local length, segments = struct.unpack('<d', record, 57), verdict.older .. struct.pack('<I7I7', verdict.last, verdict.units)
  local at = math.min(tonumber(hit_at) or verdict.last, verdict.last)
  for offset = 1, verdict.used > 0 and #segments or 0, 14 do
    local moment, units = struct.unpack('<I7I7', segments, offset)
    if moment >= at then
      if at < moment - moment % length then return nil end
      local left = math.max(units - cost, 0)
      segments = string.sub(segments, 1, offset + 6) .. struct.pack('<I7', left) .. string.sub(segments, offset + 14)
      return struct.pack('<I7', verdict.used - units + left) .. string.sub(segments, -14) .. string.sub(segments, 1, -15)
    end
  end
end
