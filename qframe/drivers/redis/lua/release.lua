-- Makes a reserved job ready again: behind the others, before them, or after a delay.
--
-- KEYS  1 reserved   2 ready   3 notify   4 delayed
-- ARGV  1 member   2 its score   3 the member it becomes   4 'tail', 'head' or seconds
-- Gives 1, or 0 where it was lost.
local reserved, ready, notify, delayed = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
if not holds(reserved, ARGV[1], ARGV[2]) then return 0 end
even_when_full(reserved)
if ARGV[4] == 'head' then
  redis.call('LPUSH', ready, ARGV[3])
  announce(notify, 1)
elseif ARGV[4] == 'tail' then
  move_due(delayed, ready, notify, now()) -- they became ready before
  redis.call('RPUSH', ready, ARGV[3])
  announce(notify, 1)
else
  local member = add(delayed, exact(now() + ARGV[4]), ARGV[3])
  wake_for_earliest(delayed, notify, member)
end
redis.call('ZREM', reserved, ARGV[1])
return 1
