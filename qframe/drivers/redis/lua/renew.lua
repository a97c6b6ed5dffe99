-- Prolongs the lease of a started job.
--
-- KEYS  1 reserved
-- ARGV  1 member   2 its score   3 seconds from now
-- Gives its new score, or '' where it was lost.
if not holds(KEYS[1], ARGV[1], ARGV[2]) then return '' end
even_when_full(KEYS[1])
local score = exact(lease_until(now() + ARGV[3]))
redis.call('ZADD', KEYS[1], 'XX', score, ARGV[1])
return score
