-- Deletes a reserved job.
--
-- KEYS  1 reserved   2 its lock, if it is unique
-- ARGV  1 member   2 its score   3 its uuid, if it is unique
-- Gives 1, or 0 where it was lost.
if not holds(KEYS[1], ARGV[1], ARGV[2]) then return 0 end
local deleted = redis.call('ZREM', KEYS[1], ARGV[1])
if KEYS[2] and deleted == 1 then free(KEYS[2], ARGV[3]) end
return deleted
