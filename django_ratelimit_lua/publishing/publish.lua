--[[
Publishes the rules and overrides of one database. The revision only moves forward.

KEYS[1]     the hash of the rules: `revision`, `database`, `format`, `rules`, `sections` (their tags), `overrides:<section>`, and `keys`, with which overrides were digested
ARGV[1..2]  the revision to publish, `<number>-<tag of the rules>-<tag of the overrides>`, and the id of the database
ARGV[3]     1: replace the rules of another database or of a newer format, which are kept otherwise
ARGV[4..6]  the format; the ids of the keys; the channel on which processes listen for changes
ARGV[7..8]  the rules, and the tags of the sections
ARGV[9..]   the sections. Rules and sections are empty if they are published with the same tag
returns     the published revision: ARGV[1], or another one if nothing was changed
]]

local rules = KEYS[1]
local published = redis.call('HMGET', rules, 'revision', 'database', 'format', 'sections')
local current, owner, format = published[1] or '0', published[2] or '', tonumber(published[3] or '0') or 0

local function number(revision)
  return tonumber(string.match(revision, '^%d+')) or 0
end

local function tag_of_rules(revision)
  return string.match(revision, '-(%x+)-')
end

local function tag(tags, section)
  return string.sub(tags, 8 * section - 7, 8 * section)
end

if ARGV[3] ~= '1' and ((owner ~= '' and owner ~= ARGV[2]) or format > tonumber(ARGV[4])) then return current end
if owner == ARGV[2] and number(current) >= number(ARGV[1]) then return current end
if ARGV[7] == '' and tag_of_rules(current) ~= tag_of_rules(ARGV[1]) then return current end
for i = 1, #ARGV - 8 do
  if ARGV[8 + i] == '' and tag(published[4] or '', i) ~= tag(ARGV[8], i) then return current end
end

if ARGV[7] ~= '' then redis.call('HSET', rules, 'rules', ARGV[7]) end
for i = 1, #ARGV - 8 do
  if ARGV[8 + i] ~= '' then redis.call('HSET', rules, 'overrides:' .. i - 1, ARGV[8 + i], 'keys', ARGV[5]) end
end
redis.call('HSET', rules, 'revision', ARGV[1], 'database', ARGV[2], 'format', ARGV[4], 'sections', ARGV[8])
redis.call('PERSIST', rules)
-- A user without permission for the channel can publish rules. Processes also read the revision once a second.
redis.pcall('PUBLISH', ARGV[6], 'rules ' .. ARGV[1])
return ARGV[1]
