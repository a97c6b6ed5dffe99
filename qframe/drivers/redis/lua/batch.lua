-- How the members of a batch are counted, put before the scripts that do.
--
-- Three keys: a hash with what the batch is; in `done` the bit of each member that is done; in
-- `failures`, by their numbers, `NUMBER:UUID` of those that failed.
local KEPT = 30 * 86400 * 1000 -- milliseconds a batch is kept after its last change
local DAY = 86400 * 1000 -- that much less is as good: not each count prolongs it

local function keep(batch, done, failures)
  redis.call('PEXPIRE', batch, KEPT)
  redis.call('PEXPIRE', done, KEPT)
  redis.call('PEXPIRE', failures, KEPT)
end

-- Counts a member, once. Gives the queue of the job that tells of it where there is something to
-- tell, also where this very count made it due before: perhaps nobody heard.
local function settle(batch, done, failures, number, uuid, failed)
  local total, succeeded, lost, sealed, step, allows, first, cancelled, finished, queue = unpack(
    redis.call('HMGET', batch, 'total', 'done', 'failed', 'sealed', 'step', 'allows', 'first',
      'cancelled', 'finished', 'teller_queue'))
  -- A number that was never given out would have the bits grow without end.
  if not total or tonumber(number) >= tonumber(total) then return nil end
  succeeded, lost, step = tonumber(succeeded), tonumber(lost), tonumber(step)
  local changed, due = false, false
  if not failed then
    changed = redis.call('SETBIT', done, number, 1) == 0
    if changed then
      succeeded = redis.call('HINCRBY', batch, 'done', 1)
      local before = lost > 0 and redis.call('ZRANGEBYSCORE', failures, number, number)[1]
      if before then
        redis.call('ZREM', failures, before)
        lost = redis.call('HINCRBY', batch, 'failed', -1)
      end
    end
    due = step > 0 and succeeded % step == 0
  elseif redis.call('GETBIT', done, number) == 0 then
    changed = #redis.call('ZRANGEBYSCORE', failures, number, number) == 0
    if changed then
      redis.call('ZADD', failures, number, number .. ':' .. uuid)
      lost = redis.call('HINCRBY', batch, 'failed', 1)
      if not first then
        first = number
        redis.call('HSET', batch, 'first', number)
        if allows == '0' and not cancelled then
          redis.call('HSET', batch, 'cancelled', exact(now()))
        end
      end
    end
  end
  if failed then due = first == number end
  if sealed and succeeded + lost >= tonumber(total) then
    if not finished then redis.call('HSET', batch, 'finished', exact(now())) end
    due = true
  end
  -- The second key begins with the first that is done, the third with one that failed.
  if changed and (failed or succeeded == 1 or redis.call('PTTL', batch) < KEPT - DAY) then
    keep(batch, done, failures)
  end
  return due and queue or nil
end

-- Gives the job that tells of a batch: its bytes, its uuid, its queue.
local function teller(batch)
  return redis.call('HMGET', batch, 'teller', 'teller_uuid', 'teller_queue')
end
