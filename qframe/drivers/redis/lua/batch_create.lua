-- Begins a batch without members.
--
-- KEYS  1 batch   2 all batches, in order
-- ARGV  1 id   2 the uuid of the job that tells of it   3.. fields and their values
-- Gives 1; where its id is taken 0, or 2 where it was by these very words.
if redis.call('HEXISTS', KEYS[1], 'total') == 1 then
  return redis.call('HGET', KEYS[1], 'teller_uuid') == ARGV[2] and 2 or 0
end
local moment = exact(now())
redis.call('HSET', KEYS[1], 'created', moment, 'total', 0, 'done', 0, 'failed', 0,
  'teller_uuid', ARGV[2], unpack(ARGV, 3))
list_last(KEYS[2], ARGV[1], moment)
redis.call('PEXPIRE', KEYS[1], KEPT)
return 1
