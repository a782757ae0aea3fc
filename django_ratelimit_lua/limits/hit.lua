--[[
A hit of a few limits in a straight line: what program.lua decides of nearly all requests, and nothing that these do not
need. It is made for the algorithms of a call, in their order: behind begin.lua, `$limits` is filled with what stands
here below the line for the first of them, and its `$others` so with the next. The calls of an algorithm's functions
are written out, and what it does with the usual states is in the last block of its file.

KEYS, ARGV and the reply are those of program.lua. Where a state is no usual one, the answer is the error AGAIN with the
token in hexadecimal digits: nothing was written, and program.lua has to be asked. `return again` stands for that.
]]
local denied, departs, granted = false, now, 0
local $answers
$states
$limits
if denied then granted = 0 end
return pack('$form', denied and 0 or 1, now, granted, 0, departs - now, $answers) .. token
-------------------------------------------------------------------------------------------------------------------------
do
  local key, state = KEYS[$number], $state
  local cost, shadow, _, _, $names = unpack('<$form', ARGV[$record])
  $hit
  local moment = when_allowed(cost)
  local allowed = moment and moment <= now
  if cost > granted then granted = cost end
  if not allowed and shadow == 0 then
    denied = true
    if moment and moment > departs then departs = moment end
  end
  $others
  local counted, later = 0, moment and moment - now
  if allowed and not denied then
    counted = charge(cost, now, false)
  end
  local used, room, idle_at = report()
  $answers = allowed and 1 or 0, used, room, allowed and 0 or later or -1,
    idle_at > now and idle_at - now or 0, later or 0, counted
end
