-- Starts a held job, its attempt counted in its new bytes, and deletes the job done before it.
--
-- Said twice it is done once: the caller repeats it where no answer came.
--
-- KEYS  1 reserved   2 reserved, of the done job   3 the lock of the done job, if it is unique
-- ARGV  1 the held member   2 its score   3 the started member   4 its score, or '' for
--       now and   5 seconds   6 the done member   7 its score (6 and 7 where there is one)
--       8 its uuid, where it is unique
-- Gives the started job's score, or '' where it was lost; and 1 where the done one was deleted.
local reserved = KEYS[1]
even_when_full(reserved)
local deleted = 0
if ARGV[7] and holds(KEYS[2], ARGV[6], ARGV[7]) then
  deleted = redis.call('ZREM', KEYS[2], ARGV[6])
  if KEYS[3] and deleted == 1 then free(KEYS[3], ARGV[8]) end
end
local score = ''
if holds(reserved, ARGV[1], ARGV[2]) then
  score = ARGV[4] ~= '' and ARGV[4] or exact(lease_until(now() + ARGV[5]))
  redis.call('ZADD', reserved, score, ARGV[3])
  redis.call('ZREM', reserved, ARGV[1])
elseif holds(reserved, ARGV[3], ARGV[4]) or holds(reserved, ARGV[3], '') then
  score = redis.call('ZSCORE', reserved, ARGV[3])
end
return {score, deleted}
