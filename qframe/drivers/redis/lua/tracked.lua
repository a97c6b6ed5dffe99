-- Moves jobs by another script, the function `move`, and notes it in the statuses of those tracked.
--
-- KEYS and ARGV are the other script's, and behind them
-- KEYS  one for each note
-- ARGV  the notes, then how many there are. A note's part says which part of the reply says whether
--       its job was moved (0: the whole); -1: of a push that may have arrived, and has if there is
--       a status. `PART!MILLISECONDS`, and then a whole status, is one to be kept as it is: the move
--       was fenced.
-- Gives what the other script gives.
local notes = tonumber(ARGV[#ARGV])
local keys, own = {}, {}
for i = 1, #KEYS - notes do keys[i] = KEYS[i] end
for i = 1, #ARGV - 1 - notes do own[i] = ARGV[i] end

for i = 1, notes do
  local life = string.match(ARGV[#own + i], '^%-1 (%d+)')
  local there = life and redis.call('GET', KEYS[#keys + i])
  if there and tonumber(string.match(there, '^%d+') or -1) >= tonumber(life) then return 0 end
end
local reply = move(keys, own)
for i = 1, notes do
  local text, said = ARGV[#own + i], reply
  local part = string.byte(text) - 48
  if part > 0 then said = reply[part] end
  if said ~= 0 and said ~= '' then
    local ms, at = string.match(text, '^%d!(%d+)\n()')
    if ms then
      redis.call('SET', KEYS[#keys + i], string.sub(text, at), 'PX', ms)
    else
      take(KEYS[#keys + i], text)
    end
  end
end
return reply
