-- Makes some buried jobs ready.
--
-- KEYS  1 buried   2 ready   3 notify   4 delayed
-- ARGV  1 how many at most
-- Gives how many there were.
local buried, ready, notify, delayed = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local count = math.min(BATCH, tonumber(ARGV[1]))
if count < 1 then return 0 end
local members = redis.call('LRANGE', buried, 0, count - 1)
if #members == 0 then return 0 end
even_when_full(delayed)
move_due(delayed, ready, notify, now()) -- they became ready before
redis.call('RPUSH', ready, unpack(members))
announce(notify, #members)
redis.call('LTRIM', buried, #members, -1)
return #members
