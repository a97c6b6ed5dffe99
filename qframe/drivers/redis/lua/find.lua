-- Looks for a text among some messages of a queue, from the last to the first: what is taken from
-- the head meanwhile lets none be missed.
--
-- KEYS  1 a list or sorted set
-- ARGV  3 text   4 how many are left to look at, or -1 for all   5 how many to look at now
-- Gives how many are left then, and each that holds the text, with its score or ''.
local is_list = redis.call('TYPE', KEYS[1]).ok ~= 'zset'
local left = tonumber(ARGV[4])
if left < 0 then left = redis.call(is_list and 'LLEN' or 'ZCARD', KEYS[1]) end
if left == 0 then return {0} end
local first = math.max(0, left - tonumber(ARGV[5]))
local found, members = {first}, nil
if is_list then
  members = redis.call('LRANGE', KEYS[1], first, left - 1)
else
  members = redis.call('ZRANGE', KEYS[1], first, left - 1, 'WITHSCORES')
end
for i = 1, #members, is_list and 1 or 2 do
  if string.find(members[i], ARGV[3], 1, true) then
    found[#found + 1] = members[i]
    found[#found + 1] = is_list and '' or members[i + 1]
  end
end
return found
