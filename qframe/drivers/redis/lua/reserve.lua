-- Holds up to a number of jobs, from several queues strictly in the order given.
--
-- First what is due goes to the tail of the ready ones, and what nobody prolonged back to their
-- head. A reservation's score is the end of its lease, and new each time: that is its fence.
--
-- KEYS  4 for each queue: ready, notify, delayed, reserved
-- ARGV  1 how many at most
-- Gives the score of the first, then the place of the queue (from 0) and the member of each; where
-- there is nothing, only the seconds until there may be something, or -1, and the time.
local limit = tonumber(ARGV[1])
local moment = now()
local first = hold_until(moment + HOLD)
local found = {exact(first)}
local taken = 0
local soonest = -1

local function give_back_expired(ready, notify, reserved)
  local expired = redis.call('ZRANGEBYSCORE', reserved, '-inf', exact(moment), 'LIMIT', 0, BATCH)
  local n = #expired
  if n > 0 then
    local last_first = {}
    for i = 1, n do last_first[i] = expired[n + 1 - i] end
    redis.call('LPUSH', ready, unpack(last_first))
    announce(notify, n)
    redis.call('ZREM', reserved, unpack(expired))
  end
end

local function look_ahead(set)
  local next = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')
  if next[1] then
    local seconds = math.max(0, tonumber(next[2]) - moment)
    if soonest < 0 or seconds < soonest then soonest = seconds end
  end
end

for i = 1, #KEYS, 4 do
  local ready, notify, delayed, reserved = KEYS[i], KEYS[i + 1], KEYS[i + 2], KEYS[i + 3]
  even_when_full(reserved)
  move_due(delayed, ready, notify, moment)
  give_back_expired(ready, notify, reserved)
  local members = redis.call('LRANGE', ready, 0, limit - taken - 1)
  if #members > 0 then
    for j, member in ipairs(members) do
      found[#found + 1] = (i - 1) / 4
      found[#found + 1] = add(reserved, exact(first + taken * STEP), member)
      taken = taken + 1
    end
    redis.call('LTRIM', ready, #members, -1)
    redis.call('LTRIM', notify, #members, -1)
  end
  -- One token for each ready job wakes one worker each; an empty queue leaves at most one.
  local left, tokens = redis.call('LLEN', ready), redis.call('LLEN', notify)
  if left > 0 and tokens == 0 then
    redis.call('RPUSH', notify, '1')
  elseif tokens > math.max(left, 1) then
    redis.call('LTRIM', notify, 0, math.max(left, 1) - 1)
  end
  if taken >= limit then break end
  look_ahead(delayed)
  look_ahead(reserved)
end
if taken == 0 then
  -- Whoever asked will wait knowing all this: tokens from before say nothing new.
  for i = 1, #KEYS, 4 do redis.call('DEL', KEYS[i + 1]) end
  return {exact(soonest), exact(moment)}
end
return found
