-- Holds a message that is ready, delayed or buried, or whose lease ran out.
--
-- KEYS  1 ready
-- ARGV  3 the message   4 seconds of a hold   5 key of its notes, or ''
-- Gives its bytes, its score and its notes; nothing where it has moved on.
local ready, reserved, wanted = KEYS[1], KEYS[1] .. ':reserved', ARGV[3]
even_when_full(reserved)
local ends = redis.call('ZSCORE', reserved, wanted)
local expired = ends and tonumber(ends) <= now()
local due = tonumber(redis.call('ZSCORE', ready .. ':delayed', wanted) or 0)
if redis.call('LREM', ready, -1, wanted) == 0
  and redis.call('ZREM', ready .. ':delayed', wanted) == 0
  and redis.call('LREM', ready .. ':buried', -1, wanted) == 0
  and not (expired and redis.call('ZREM', reserved, wanted) == 1) then
  return false
end
-- One that is delayed must not come back before it is due.
local score = exact(hold_until(math.max(now() + ARGV[4], due + STEP)))
local member = add(reserved, score, wanted)
return {member, score, ARGV[5] ~= '' and redis.call('GET', ARGV[5]) or ''}
