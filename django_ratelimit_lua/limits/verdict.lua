--[[
The verdict on a limit, between the look at its state and what is written: it stands in the middle of each algorithm.

It is given     moment (when the cost may go; nil: never) and accepts (when it would be accepted, if not at that moment; nil:
                as max_wait says)
It finds        at: from when on the units are charged; nil: they are not; refused: they are, though they were refused. Of
                a refund, there are neither
]]
if op == 'refund' then
  moment, accepts, allowed = now, now, true
elseif moment then
  if not accepts then accepts = now end
  if max_wait >= 0 and moment - max_wait > accepts then accepts = moment - max_wait end
  -- Nothing goes before a ban ends, however short a wait would do without it.
  if ban then moment, accepts = ban.hold(moment, accepts) end
  allowed = accepts <= now
end
if denied ~= nil then
  if op ~= 'refund' then
    if units > granted then granted = units end
    if shadow == 0 then
      if not allowed then denied = true end
      if moment and moment > departs then departs = moment end
    end
  end
  if i < limit_count then
    denied, departs, granted, answer = decide(KEYS, ARGV, rcall, pack, unpack, unpack_args, op, now, slack, limit_count, bans, states,
      i + 1, forced, denied, departs, granted)
    if denied == nil then return nil, departs, granted end
  elseif op == 'charge' then
    denied, departs = false, now
  end
  if op == 'charge' then
    at = now
  elseif op == 'hit' and units > 0 then
    if ban and not (ban.waits or allowed or bans.hold) then
      ban.offend()
      moment, accepts = ban.hold(moment, accepts)
      if shadow == 0 and moment and moment > departs then departs = moment end
    end
    if allowed and not denied then
      at = moment > departs and moment or departs
    elseif count_denied == 1 and not (ban and ban.holds or bans and bans.hold) then
      at, refused = now, true
    end
  end
end
