-- Notes that a batch is cancelled.
--
-- KEYS  1 batch   2 its done   3 its failures
-- Gives 1, or 0 where it was, or is finished; nothing where there is none.
local total, done, failed, sealed, cancelled = unpack(
  redis.call('HMGET', KEYS[1], 'total', 'done', 'failed', 'sealed', 'cancelled'))
if not total then return false end
if cancelled or (sealed and done + failed >= tonumber(total)) then return 0 end
redis.call('HSET', KEYS[1], 'cancelled', exact(now()))
keep(KEYS[1], KEYS[2], KEYS[3])
return 1
