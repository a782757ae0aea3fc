--[[
Publishes the rules and overrides of one database, unless another process has published since they were read.

KEYS[1]     the hash of the rules: `revision`, `rules` (the snapshot), `database`, `keys`, `format`, `swept`, and a field for each subject
            with overrides
KEYS[2]     a complete hash that replaces KEYS[1]; absent if only some subjects changed
ARGV[1]     the revision that was published when the rules were read; 0 if there was none
ARGV[2]     the revision to publish: `<number>-<tag>`
ARGV[3..5]  the snapshot; the id of the database; the ids of the keys that made the digests of subjects
ARGV[6]     1: replace the rules of another database or of a newer format, which are kept otherwise
ARGV[7..8]  the format of the snapshot; the channel on which processes listen for changes
ARGV[9..]   the number of subjects that lost their overrides, and these; then each subject with overrides, and its record
returns     the published revision: ARGV[2], or another one if nothing was changed
]]

local rules, made = KEYS[1], KEYS[2]
local published = redis.call('HMGET', rules, 'revision', 'database', 'format')
local current, owner = published[1] or '0', published[2] or ''
local function number(text) return tonumber(string.match(text, '^%d+')) or 0 end

if current ~= ARGV[1] then return current end
if owner ~= '' and owner ~= ARGV[4] and ARGV[6] ~= '1' then return current end
if owner == ARGV[4] and number(current) >= number(ARGV[2]) then return current end
if (tonumber(published[3] or '1') or 1) > tonumber(ARGV[7]) and ARGV[6] ~= '1' then return current end
-- The revision is the first field that the publisher writes. Without it, Redis was emptied since, and the hash is incomplete.
if made and redis.call('HGET', made, 'revision') ~= ARGV[2] then return current end

if made then redis.call('RENAME', made, rules) end
local removed = tonumber(ARGV[9])
for i = 10, 9 + removed do redis.call('HDEL', rules, ARGV[i]) end
for i = 10 + removed, #ARGV, 2 do redis.call('HSET', rules, ARGV[i], ARGV[i + 1]) end
redis.call('HSET', rules, 'revision', ARGV[2], 'rules', ARGV[3], 'database', ARGV[4], 'keys', ARGV[5],
  'format', ARGV[7])
redis.call('PERSIST', rules)
-- A user without permission for the channel can publish rules. Processes also read the revision once a second.
redis.pcall('PUBLISH', ARGV[8], 'rules ' .. ARGV[2])
return ARGV[2]
