-- Deletes a reserved job.
--
-- KEYS  1 reserved
-- ARGV  1 member   2 its score
-- Gives 1, or 0 where it was lost.
if not holds(KEYS[1], ARGV[1], ARGV[2]) then return 0 end
return redis.call('ZREM', KEYS[1], ARGV[1])
