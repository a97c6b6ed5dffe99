-- Stores messages of which nobody knows whether they arrived, unless they are found.
--
-- All arrived or none: the last and the first of them are looked for, as sent at the tail of the
-- ready ones, among the delayed, held and buried ones, by uuid among those that run or failed.
--
-- KEYS  1 ready  2 notify  3 delayed  4 reserved  5 buried  6 failed, where it is in this slot
-- ARGV  1 delay in seconds, 0 for none  2 uuid of the first  3 uuid of the last  4... messages
-- Gives how many were stored now.
local FAR = 1000
local running = redis.call('ZRANGE', KEYS[4], 0, FAR - 1)

local function arrived(uuid, message)
  if redis.call('ZSCORE', KEYS[3], message) or redis.call('ZSCORE', KEYS[4], message) then
    return true
  end
  for _, list in ipairs({KEYS[1], KEYS[5]}) do
    if redis.call('LPOS', list, message, 'RANK', -1, 'MAXLEN', #ARGV + FAR) then return true end
  end
  for _, member in ipairs(running) do
    if string.find(member, uuid, 1, true) then return true end
  end
  return KEYS[6] and redis.call('HEXISTS', KEYS[6], uuid) == 1
end

if arrived(ARGV[3], ARGV[#ARGV]) or arrived(ARGV[2], ARGV[4]) then return 0 end
push(KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1]), ARGV, 4)
return #ARGV - 3
