--[[
Reads the published rules and overrides, without the parts that the caller has already.

KEYS[1]     the hash of the rules, see `publishing/publish.lua`
ARGV[1..2]  the tags of the caller's rules and overrides; empty: it has none
returns     the revision, the id of the database, the format, the rules and the overrides. A part that the caller has is empty
]]

local published = redis.call('HMGET', KEYS[1], 'revision', 'database', 'format')
local tags = {string.match(published[1] or '', '-(%x+)-(%x+)')}
for i, part in ipairs({'rules', 'overrides'}) do
  published[3 + i] = tags[i] == ARGV[i] and '' or redis.call('HGET', KEYS[1], part)
end
return published
