-- Moves jobs by another script, the function `move`, and takes or frees the locks of unique ones.
--
-- A lock's value is the uuid of the job that has it. KEYS and ARGV are the other script's, and
-- behind them
-- KEYS  one for each lock
-- ARGV  three for each lock, then how many there are
--       'take', uuid, milliseconds: nothing is moved where another job has it
--       'retake', uuid, milliseconds: the same, but not where it is its own
--       'set', uuid, milliseconds: whoever has it
--       'free', uuid, the part of the reply that says whether its job was moved (0: the whole)
-- Gives what the other script gives; of a lock that another job has, its uuid; 0 where a lock shows
-- that its job had arrived before.
local count = tonumber(ARGV[#ARGV])
local keys, own = {}, {}
for i = 1, #KEYS - count do keys[i] = KEYS[i] end
for i = 1, #ARGV - 1 - 3 * count do own[i] = ARGV[i] end

for i = 1, count do
  local verb, uuid = ARGV[#own + 3 * i - 2], ARGV[#own + 3 * i - 1]
  local holder = (verb == 'take' or verb == 'retake') and redis.call('GET', KEYS[#keys + i])
  if holder and holder ~= uuid then return holder end
  if holder and verb == 'take' then return 0 end
end
local reply = move(keys, own)
for i = 1, count do
  local key, at = KEYS[#keys + i], #own + 3 * i
  local uuid, said = ARGV[at - 1], reply
  if ARGV[at - 2] ~= 'free' then
    if said ~= 0 then redis.call('SET', key, uuid, 'PX', ARGV[at]) end
  else
    local part = tonumber(ARGV[at])
    if part > 0 then said = reply[part] end
    if said ~= 0 and said ~= '' and redis.call('GET', key) == uuid then redis.call('DEL', key) end
  end
end
return reply
