-- Adds to counters, unless this step was added before.
--
-- KEYS  1 where the caller's last step is kept  2.. counters
-- ARGV  1 step  2 seconds it is kept  3.. what to add to each counter
-- Gives 1 where it did.
if redis.call('GET', KEYS[1]) == ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
for i = 2, #KEYS do redis.call('INCRBY', KEYS[i], ARGV[i + 1]) end
return 1
