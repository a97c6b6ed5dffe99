-- Deletes the messages of a queue that are ready or delayed, or whose lease ran out.
--
-- KEYS  1 ready
-- ARGV  3 the key of the ages of what is ready (reserve.lua)
-- Gives how many there were.
local ready, delayed, reserved = KEYS[1], KEYS[1] .. ':delayed', KEYS[1] .. ':reserved'
local count = redis.call('LLEN', ready) + redis.call('ZCARD', delayed)
count = count + redis.call('ZREMRANGEBYSCORE', reserved, '-inf', exact(now()))
redis.call('UNLINK', ready, ready .. ':notify', delayed, ARGV[3])
return count
