-- Deletes the jobs of a queue that are ready, delayed or reserved with a lease that ran out; the
-- others reserved are left to finish.
--
-- KEYS  1 ready   2 notify   3 delayed   4 reserved
-- Gives how many there were.
local reserved = KEYS[4]
local moment = exact(now())
local count = redis.call('LLEN', KEYS[1]) + redis.call('ZCARD', KEYS[3])
repeat
  local expired = redis.call('ZRANGEBYSCORE', reserved, '-inf', moment, 'LIMIT', 0, BATCH)
  if #expired > 0 then count = count + redis.call('ZREM', reserved, unpack(expired)) end
until #expired < BATCH
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3])
return count
