-- Tells when there may be something to reserve.
--
-- KEYS  4 for each queue: ready, notify, delayed, reserved
-- Gives seconds: 0 for now, -1 for never.
local moment = now()
local soonest = -1
for i = 1, #KEYS, 4 do
  if redis.call('LLEN', KEYS[i]) > 0 then return '0' end
  for j = 2, 3 do
    local next = redis.call('ZRANGE', KEYS[i + j], 0, 0, 'WITHSCORES')
    if next[1] then
      local seconds = math.max(0, tonumber(next[2]) - moment)
      if soonest < 0 or seconds < soonest then soonest = seconds end
    end
  end
end
-- Whoever asked will wait knowing all this: tokens from before say nothing new.
for i = 1, #KEYS, 4 do redis.call('DEL', KEYS[i + 1]) end
return exact(soonest)
