--[[
Publishes rules and overrides, if nobody has published since they were read.

KEYS[1]         the hash of the rules: `revision`, `rules` (the snapshot), and a field for each subject with overrides
KEYS[2]         a hash with all overrides, made beforehand, that takes the other's place; or none
ARGV[1]         the revision that was published when they were read; 0: none
ARGV[2]         the revision to publish
ARGV[3]         the snapshot
ARGV[4]         how many subjects have no overrides any more; then these, then subject and record for each that has
returns         the revision that is published now: ARGV[2], or another, and then nothing was changed
]]

local rules = KEYS[1]
local current = redis.call('HGET', rules, 'revision') or '0'
if current ~= ARGV[1] then return current end
if KEYS[2] then
  redis.call('DEL', rules)
  if redis.call('EXISTS', KEYS[2]) == 1 then redis.call('RENAME', KEYS[2], rules) end
  redis.call('PERSIST', rules)
end
local removed = tonumber(ARGV[4])
for i = 5, 4 + removed do redis.call('HDEL', rules, ARGV[i]) end
for i = 5 + removed, #ARGV, 2 do redis.call('HSET', rules, ARGV[i], ARGV[i + 1]) end
redis.call('HSET', rules, 'revision', ARGV[2], 'rules', ARGV[3])
return ARGV[2]
