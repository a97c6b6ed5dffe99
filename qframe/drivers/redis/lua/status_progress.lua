-- Changes the progress of a job that runs, in this very attempt.
--
-- KEYS  1 status
-- ARGV  1 life   2 attempt   3 milliseconds it is kept   4 progress
-- Gives 1, or 0 where another attempt, or none, runs.
local old = redis.call('GET', KEYS[1]) or ''
local head = ARGV[1] .. ' ' .. ARGV[2] .. ' RUNNING\n'
if string.sub(old, 1, #head) ~= head then return 0 end
local kept = string.match(old, '^(.*\n)[^\n]*$')
redis.call('SET', KEYS[1], kept .. ARGV[4], 'PX', ARGV[3])
return 1
