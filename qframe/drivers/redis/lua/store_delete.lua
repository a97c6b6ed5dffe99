-- Removes a key that still holds a value.
--
-- KEYS  1 key
-- ARGV  1 value
-- Gives 1 where it did.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
