-- Deletes the ready and delayed jobs of a queue; those reserved are left to finish.
--
-- KEYS  1 ready   2 notify   3 delayed
-- Gives how many there were.
local count = redis.call('LLEN', KEYS[1]) + redis.call('ZCARD', KEYS[3])
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3])
return count
