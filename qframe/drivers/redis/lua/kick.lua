-- Makes some buried messages ready.
--
-- KEYS  1 ready
-- ARGV  3 how many at most
-- Gives how many there were.
local ready, notify, buried = KEYS[1], KEYS[1] .. ':notify', KEYS[1] .. ':buried'
local members = redis.call('LRANGE', buried, 0, math.min(MOST, tonumber(ARGV[3])) - 1)
if #members == 0 then return 0 end
even_when_full(ready .. ':delayed')
move_due(ready, notify, ready .. ':delayed') -- they became ready before
make_ready(ready, ready .. ':delayed', members)
announce(notify, #members)
redis.call('LTRIM', buried, #members, -1)
return #members
