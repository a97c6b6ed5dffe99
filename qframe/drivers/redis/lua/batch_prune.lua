-- Removes batches from among some of the oldest.
--
-- KEYS  1 all batches, in order
-- ARGV  1 how many before them were looked at and left   2 the moment before which they finished
--       3 before which unfinished ones, or such as have not been told of, were created, or ''
--       4 before which they were cancelled, or ''   5 what the keys of batches begin with: all are in
--       the slot of the list
-- Gives how many were removed, and how many were left; nothing behind the last.
local index, start = KEYS[1], ARGV[5]
local before, unfinished, cancelled = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local ids = redis.call('ZRANGE', index, ARGV[1], ARGV[1] + BATCH - 1)
if #ids == 0 then return false end

-- As `BatchRecord.is_told`; within `follow` the quotes of payloads are escaped.
local function is_told(key, cancelled)
  local last, done, chained, broken, failed = unpack(redis.call('HMGET', key, 'told:finally',
    'told:then', 'told:chain', 'told:broken', 'failed'))
  if not last or not (done or cancelled or failed ~= '0') then return false end
  if chained or broken then return true end
  return not string.find(redis.call('HGET', key, 'options'), '"chain":', 1, true)
end

local removed, left = 0, 0
for _, id in ipairs(ids) do
  local key = start .. ':' .. id
  local created, finish, cancel = unpack(
    redis.call('HMGET', key, 'created', 'finished', 'cancelled'))
  finish, cancel = tonumber(finish), tonumber(cancel)
  if not created then
    redis.call('ZREM', index, id)
  elseif (cancel and cancelled and cancel < cancelled)
    or (finish and finish < before and is_told(key, cancel))
    or (unfinished and tonumber(created) < unfinished
      and not (finish and is_told(key, cancel))) then
    redis.call('UNLINK', key, start .. 'done:' .. id, start .. 'failed:' .. id)
    redis.call('ZREM', index, id)
    removed = removed + 1
  else
    left = left + 1
  end
end
return {removed, left}
