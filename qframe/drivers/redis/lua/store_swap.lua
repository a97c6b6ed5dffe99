-- Changes keys that all hold what is expected, or none of them.
--
-- KEYS  1 where the caller's last step is kept  2.. keys
-- ARGV  1 number of the step, which only grows  2 1 where it is said again  3 seconds it is kept
--       4 milliseconds the keys live, 0 for ever  5.. expected and then wanted, of each key: '' for
--       nothing, else the value behind a '='
-- Gives 1 where it did, also when it did the first time it was said.
local step, last = tonumber(ARGV[1]), tonumber(redis.call('GET', KEYS[1]) or 0)
if last == step then return 1 end
if last > step then return 0 end -- said again since then: nobody waits for this one any more

for i = 2, #KEYS do
  local found = redis.call('GET', KEYS[i])
  if (found and '=' .. found or '') ~= ARGV[2 * i + 1] then
    -- What was said first may still be on its way, and may not do it later.
    if ARGV[2] == '1' then redis.call('SET', KEYS[1], step + 0.5, 'EX', ARGV[3]) end
    return 0
  end
end

-- What a server does whose memory is full comes first: the rest of the script is done there then.
local ttl = tonumber(ARGV[4])
local sets = {}
for i = 2, #KEYS do
  local expected, wanted = ARGV[2 * i + 1], ARGV[2 * i + 2]
  if wanted == '' then
    if expected ~= '' then redis.call('DEL', KEYS[i]) end
  elseif wanted ~= expected then
    sets[#sets + 1] = i
  elseif ttl > 0 then
    redis.call('PEXPIRE', KEYS[i], ttl)
  else
    redis.call('PERSIST', KEYS[i])
  end
end
for _, i in ipairs(sets) do
  local value = string.sub(ARGV[2 * i + 2], 2)
  if ttl > 0 then
    redis.call('SET', KEYS[i], value, 'PX', ttl)
  else
    redis.call('SET', KEYS[i], value)
  end
end
redis.call('SET', KEYS[1], step, 'EX', ARGV[3])
return 1
