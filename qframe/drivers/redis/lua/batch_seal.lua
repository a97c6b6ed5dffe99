-- Notes that all first members of a batch are there.
--
-- KEYS  1 batch   2 its done   3 its failures
-- ARGV  1 what keys of queues begin with, where the job that tells of it is to be pushed here: not
--       on a Cluster
-- Gives the bytes, the uuid and the queue of that job, where all have settled.
local total, done, failed, finished = unpack(
  redis.call('HMGET', KEYS[1], 'total', 'done', 'failed', 'finished'))
if not total then return false end
redis.call('HSET', KEYS[1], 'sealed', 1)
keep(KEYS[1], KEYS[2], KEYS[3])
if done + failed < tonumber(total) then return false end
if ARGV[1] then
  local raw, _, queue = unpack(teller(KEYS[1]))
  local ready = ARGV[1] .. queue
  push(ready, ready .. ':notify', ready .. ':delayed', 0, {raw}, 1)
end
if not finished then redis.call('HSET', KEYS[1], 'finished', exact(now())) end
return teller(KEYS[1])
