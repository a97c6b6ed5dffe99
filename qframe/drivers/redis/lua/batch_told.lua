-- Notes what was told of a batch.
--
-- KEYS  1 batch   2 its done   3 its failures
-- ARGV  1 of how many settled members progress was told, or ''   2.. the callbacks that were pushed
-- Gives 1, or 0 where there is no such batch.
if redis.call('HEXISTS', KEYS[1], 'total') == 0 then return 0 end
local progress = tonumber(redis.call('HGET', KEYS[1], 'told_progress') or 0)
if (tonumber(ARGV[1]) or 0) > progress then redis.call('HSET', KEYS[1], 'told_progress', ARGV[1]) end
for i = 2, #ARGV do redis.call('HSET', KEYS[1], 'told:' .. ARGV[i], 1) end
keep(KEYS[1], KEYS[2], KEYS[3])
return 1
