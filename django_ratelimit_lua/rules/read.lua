--[[
Reads the published rules and overrides, without the parts that the caller has already.

KEYS[1]     the hash of the rules, see `publishing/publish.lua`
ARGV[1..2]  the tag of the caller's rules, and the tags of its sections of overrides; spaces: it has none
returns     the revision, the id of the database, the format, the rules and each section. A part that the caller has is empty
]]

local published = redis.call('HMGET', KEYS[1], 'revision', 'database', 'format', 'sections')
local tags = published[4] or ''
local is_known = string.match(published[1] or '', '-(%x+)-') == ARGV[1]
published[4] = is_known and '' or redis.call('HGET', KEYS[1], 'rules')
for i = 1, #ARGV[2] / 8 do
  is_known = string.sub(tags, 8 * i - 7, 8 * i) == string.sub(ARGV[2], 8 * i - 7, 8 * i)
  published[4 + i] = is_known and '' or redis.call('HGET', KEYS[1], 'overrides:' .. i - 1)
end
return published
