-- Wakes somebody where there are ready jobs and no token: one was taken by a wait given up.
--
-- KEYS  2 for each queue: ready, notify
for i = 1, #KEYS, 2 do
  if redis.call('LLEN', KEYS[i]) > 0 and redis.call('LLEN', KEYS[i + 1]) == 0 then
    redis.call('RPUSH', KEYS[i + 1], '1')
  end
end
return 1
