-- Deletes a reserved job and pushes the next one of its chain, with what keys are to hold then: all
-- of it, or nothing.
--
-- KEYS  1 reserved   2 ready   3 notify   4 delayed, of the next one   5.. keys
-- ARGV  1 member   2 its score   3 delay of the next one in seconds, 0 for none   4 its message
--       5.. expected, wanted and the milliseconds it lives, of each key: '' for nothing, else the
--       value behind a '='
-- Gives 1; 0 where it was lost, '' where a key holds something else.
local reserved = KEYS[1]
if not holds(reserved, ARGV[1], ARGV[2]) then return 0 end
for i = 5, #KEYS do
  local found = redis.call('GET', KEYS[i])
  if (found and '=' .. found or '') ~= ARGV[3 * i - 10] then return '' end
end
even_when_full(reserved)
push(KEYS[2], KEYS[3], KEYS[4], tonumber(ARGV[3]), {ARGV[4]}, 1)
for i = 5, #KEYS do
  local wanted = ARGV[3 * i - 9]
  if wanted == '' then
    redis.call('DEL', KEYS[i])
  else
    redis.call('SET', KEYS[i], string.sub(wanted, 2), 'PX', ARGV[3 * i - 8])
  end
end
redis.call('ZREM', reserved, ARGV[1])
return 1
