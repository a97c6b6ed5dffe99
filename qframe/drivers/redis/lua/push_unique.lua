-- Stores a unique message, ready now or after a delay, and takes its lock: both or none.
--
-- A lock's value is the uuid of the job that has it.
--
-- KEYS  1 ready  2 notify  3 delayed  4 lock
-- ARGV  1 delay in seconds, 0 for none   2 message   3 uuid   4 milliseconds the lock lasts
-- Gives 1; of a lock that another job has, its uuid; 0 where it is its own: the message is there.
if not redis.call('SET', KEYS[4], ARGV[3], 'NX', 'PX', ARGV[4]) then
  local holder = redis.call('GET', KEYS[4])
  return holder == ARGV[3] and 0 or holder
end
local stored, trouble = pcall(push, KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1]), {ARGV[2]}, 1)
if not stored then
  redis.call('DEL', KEYS[4])
  return redis.error_reply(type(trouble) == 'table' and trouble.err or tostring(trouble))
end
return 1
