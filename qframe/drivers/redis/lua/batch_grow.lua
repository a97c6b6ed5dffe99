-- Adds members to a batch that is not sealed, or neither finished nor cancelled.
--
-- KEYS  1 batch   2 its done   3 its failures   4 where what was said first has left its answer
-- ARGV  1 how many   2 milliseconds that answer is kept
-- Gives the number of the first, or nothing.
local before = redis.call('GET', KEYS[4])
if before then return tonumber(before) end
local total, done, failed, sealed, cancelled = unpack(
  redis.call('HMGET', KEYS[1], 'total', 'done', 'failed', 'sealed', 'cancelled'))
if not total then return false end
if sealed and (cancelled or done + failed >= tonumber(total)) then return false end
redis.call('SET', KEYS[4], total, 'PX', ARGV[2])
redis.call('HINCRBY', KEYS[1], 'total', ARGV[1])
keep(KEYS[1], KEYS[2], KEYS[3])
return tonumber(total)
