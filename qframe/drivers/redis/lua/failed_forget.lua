-- Forgets failed jobs: those named, or some of those that failed before a moment.
--
-- KEYS  1 failed   2 failed, in order
-- ARGV  1 the moment, or ''   2... uuids
-- Gives how many there were.
local uuids = {}
if ARGV[1] == '' then
  for i = 2, #ARGV do uuids[i - 1] = ARGV[i] end
else
  uuids = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '(' .. ARGV[1], 'LIMIT', 0, BATCH)
end
if #uuids == 0 then return 0 end
local count = redis.call('HDEL', KEYS[1], unpack(uuids))
redis.call('ZREM', KEYS[2], unpack(uuids))
return count
