-- Puts a reserved job aside until it is kicked.
--
-- KEYS  1 reserved   2 buried
-- ARGV  1 member   2 its score
-- Gives 1, or 0 where it was lost.
if not holds(KEYS[1], ARGV[1], ARGV[2]) then return 0 end
even_when_full(KEYS[1])
redis.call('RPUSH', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[1], ARGV[1])
return 1
