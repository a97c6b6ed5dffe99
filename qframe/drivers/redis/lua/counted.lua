-- Removes a member of a batch by another script, the function `move`, and counts it in the batch.
--
-- Not for a Cluster: the keys of the queue of the job that tells of the batch are made here, of
-- what is kept with the batch. The count comes first: of what breaks off, the job is left.
--
-- KEYS and ARGV are the other script's, and behind them
-- KEYS  the batch   its done   its failures
-- ARGV  the member's number   uuid   1 where it failed   what keys of queues begin with   the part
--       of the reply that says whether the job was removed: 0 the whole (its set is then the first
--       key, it and its score the first two words), 2 of a start (the second, and the sixth)
-- Gives what the other script gives.
local count, words = #KEYS - 3, #ARGV - 5
local keys, own = {}, {}
for i = 1, count do keys[i] = KEYS[i] end
for i = 1, words do own[i] = ARGV[i] end

local reserved, at = KEYS[1], 1
if ARGV[words + 5] == '2' then reserved, at = KEYS[2], 6 end
if holds(reserved, ARGV[at], ARGV[at + 1]) then
  even_when_full(reserved)
  local batch = KEYS[count + 1]
  local queue = settle(batch, KEYS[count + 2], KEYS[count + 3], ARGV[words + 1], ARGV[words + 2],
    ARGV[words + 3] == '1')
  if queue then
    local ready = ARGV[words + 4] .. queue
    push(ready, ready .. ':notify', ready .. ':delayed', 0, {teller(batch)[1]}, 1)
  end
end
return move(keys, own)
