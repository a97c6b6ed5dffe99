-- Looks for a text among some members of a queue, from the last to the first: what is taken from
-- the head meanwhile lets none be missed.
--
-- KEYS  1 a list or sorted set
-- ARGV  1 text   2 how many are left to look at, or -1 for all   3 how many to look at now
--       4 whether it is a list
-- Gives how many are left then, and the members that hold the text.
local count, range = 'ZCARD', 'ZRANGE'
if ARGV[4] == '1' then count, range = 'LLEN', 'LRANGE' end
local left = tonumber(ARGV[2])
if left < 0 then left = redis.call(count, KEYS[1]) end
if left == 0 then return {0} end
local first = math.max(0, left - tonumber(ARGV[3]))
local found = {first}
for _, member in ipairs(redis.call(range, KEYS[1], first, left - 1)) do
  if string.find(member, ARGV[1], 1, true) then found[#found + 1] = member end
end
return found
