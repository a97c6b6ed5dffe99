-- Lists batches, latest first; those whose time is over are taken from the list.
--
-- KEYS  1 all batches, in order
-- ARGV  1 how many   2 the id before them, or ''   3 what the key of a batch begins with: all are in
--       the slot of the list
-- Gives the id and the fields of each, one list after the other.
local index, limit, start = KEYS[1], tonumber(ARGV[1]), ARGV[3]
local at = 0
if ARGV[2] ~= '' then at = (redis.call('ZREVRANK', index, ARGV[2]) or -1) + 1 end
local found, gone = {}, {}
while #found < 2 * limit do
  local ids = redis.call('ZREVRANGE', index, at, at + BATCH - 1)
  if #ids == 0 then break end
  at = at + #ids
  for _, id in ipairs(ids) do
    local fields = redis.call('HGETALL', start .. id)
    if #fields == 0 then
      gone[#gone + 1] = id
    elseif #found < 2 * limit then
      found[#found + 1] = id
      found[#found + 1] = fields
    end
  end
end
for _, id in ipairs(gone) do redis.call('ZREM', index, id) end
return found
