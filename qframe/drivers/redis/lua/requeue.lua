-- Queues a failed job anew and forgets its record; of two callers at once one does.
--
-- KEYS  1 failed   2 failed, in order   3 ready   4 notify   5 delayed
-- ARGV  1 uuid   2 message
-- Gives 1, or 0 where there was no such record.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
even_when_full(KEYS[2])
move_due(KEYS[5], KEYS[3], KEYS[4], now()) -- they became ready before
redis.call('RPUSH', KEYS[3], ARGV[2])
announce(KEYS[4], 1)
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
