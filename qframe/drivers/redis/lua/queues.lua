-- Names the queues that hold messages, and forgets the others. Not for a Cluster.
--
-- KEYS  1 the set of names
-- ARGV  3.. further names to look at
-- Gives the names, as their ready lists, of those that hold some; and of keys that are no queues.
local names, found, bad = redis.call('SMEMBERS', KEYS[1]), {}, {}
for i = 3, #ARGV do names[#names + 1] = ARGV[i] end
for _, ready in ipairs(names) do
  local count, wrong = 0, false
  for command, keys in pairs({LLEN = {'', ':buried'}, ZCARD = {':delayed', ':reserved'}}) do
    for _, key in ipairs(keys) do
      local said = redis.pcall(command, ready .. key)
      if type(said) == 'table' then wrong = true else count = count + said end
    end
  end
  if wrong then
    bad[#bad + 1] = ready
  elseif count > 0 then
    found[#found + 1] = ready
  else
    redis.call('SREM', KEYS[1], ready)
  end
end
return {found, bad}
