-- Records a reserved job as failed, then removes it.
--
-- KEYS  1 reserved   2 failed   3 failed, in order
-- ARGV  1 member   2 its score   3 uuid   4 record   5 when it failed
-- Gives 1, or 0 where it was lost.
if not holds(KEYS[1], ARGV[1], ARGV[2]) then return 0 end
even_when_full(KEYS[1])
record(KEYS[2], KEYS[3], ARGV[3], ARGV[4], ARGV[5])
redis.call('ZREM', KEYS[1], ARGV[1])
return 1
