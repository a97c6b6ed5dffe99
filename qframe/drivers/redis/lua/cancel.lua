-- Removes a job that waits, is delayed or buried, or whose lease ran out.
--
-- KEYS  1 ready   2 delayed   3 reserved   4 buried
-- ARGV  1 member
-- Gives {1}, or {0} where it is in none of them, {0, 'held'} or {0, 'running'}.
if redis.call('LREM', KEYS[1], -1, ARGV[1]) > 0 then return {1} end
if redis.call('ZREM', KEYS[2], ARGV[1]) > 0 then return {1} end
local ends = tonumber(redis.call('ZSCORE', KEYS[3], ARGV[1]) or 'none')
if ends then
  if ends <= now() then return {redis.call('ZREM', KEYS[3], ARGV[1])} end
  return {0, ends % STEP > 0 and 'running' or 'held'}
end
return {redis.call('LREM', KEYS[4], -1, ARGV[1])}
