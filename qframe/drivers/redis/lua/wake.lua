-- Makes one delayed message ready.
--
-- KEYS  1 ready
-- ARGV  3 the message
-- Gives 1 where it was delayed; 0 where it is not there.
local ready, delayed, wanted = KEYS[1], KEYS[1] .. ':delayed', ARGV[3]
if tonumber(redis.call('ZSCORE', delayed, wanted) or -1) < 0 then return 0 end
move_due(ready, ready .. ':notify', delayed) -- they became ready before
if tonumber(redis.call('ZSCORE', delayed, wanted) or -1) >= 0 then
  local plain = make_ready(ready, delayed, {wanted})
  announce(ready .. ':notify', 1)
  if #plain > 0 then redis.call('ZREM', delayed, wanted) end
end
return 1
