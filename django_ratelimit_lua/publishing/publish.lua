--[[
Publishes rules and overrides of one database, if nobody has published since they were read.

KEYS[1]         the hash of the rules: `revision`, `rules` (the snapshot), `database`, `keys`, `format`, `swept`,
                and a field for each subject with overrides
KEYS[2]         a hash with all overrides, made beforehand, that takes the other's place; or none
ARGV[1]         the revision that was published when they were read; 0: none
ARGV[2]         the revision to publish: `<number>-<tag>`
ARGV[3]         the snapshot
ARGV[4]         the id of the database; what is published of another is only replaced if ARGV[6] is 1
ARGV[5]         the ids of the keys that the subjects' digests were made with
ARGV[6]         1: take the place of another database, or of a newer format
ARGV[7]         the format of the snapshot; what is published in a newer one is only replaced if ARGV[6] is 1
ARGV[8]         the channel on which all processes are told that there are new rules
ARGV[9]         how many subjects have no overrides any more; then these, then subject and record for each that has
returns         the revision that is published now: ARGV[2], or another, and then nothing was changed
]]

local rules, made = KEYS[1], KEYS[2]
local published = redis.call('HMGET', rules, 'revision', 'database', 'format')
local current, owner = published[1] or '0', published[2] or ''
local function number(text) return tonumber(string.match(text, '^%d+')) or 0 end

if current ~= ARGV[1] then return current end
if owner ~= '' and owner ~= ARGV[4] and ARGV[6] ~= '1' then return current end
if owner == ARGV[4] and number(current) >= number(ARGV[2]) then return current end
if (tonumber(published[3] or '1') or 1) > tonumber(ARGV[7]) and ARGV[6] ~= '1' then return current end
-- Whoever made it wrote the revision first. If that is gone, Redis was emptied meanwhile, and what is left is not all.
if made and redis.call('HGET', made, 'revision') ~= ARGV[2] then return current end

if made then redis.call('RENAME', made, rules) end
local removed = tonumber(ARGV[9])
for i = 10, 9 + removed do redis.call('HDEL', rules, ARGV[i]) end
for i = 10 + removed, #ARGV, 2 do redis.call('HSET', rules, ARGV[i], ARGV[i + 1]) end
redis.call('HSET', rules, 'revision', ARGV[2], 'rules', ARGV[3], 'database', ARGV[4], 'keys', ARGV[5],
  'format', ARGV[7])
redis.call('PERSIST', rules)
-- Whoever may not publish on the channel is obeyed all the same: the others ask once a second.
redis.pcall('PUBLISH', ARGV[8], 'rules ' .. ARGV[2])
return ARGV[2]
