-- What several scripts use; put before each of them.
--
-- Keys of a queue, {name} in braces on a Cluster: queues:name is the list of what is ready,
-- :delayed and :reserved are sorted sets by moments of this server's clock, :notify has a token for
-- each job that somebody may wait for, :buried is what was put aside. All hold whole payloads, which
-- are opaque: nothing here reads JSON. What is moved is added first and removed last, since a script
-- that fails on its way is not rolled back.
--
-- ARGV  1 seconds added to the clock   2 white space that tells equal payloads apart
local TAG = ARGV[2]
local MOST = 100 -- as many due or expired ones are moved at a time
local STEP = 1 / 1048576 -- the score of a hold is a multiple, that of a started job half a STEP more
local KEPT = 90 * 86400 -- seconds the notes on a message are kept
local apart = 0
local moment

local function now()
  if not moment then
    local time = redis.call('TIME')
    moment = time[1] + time[2] / 1000000 + ARGV[1]
  end
  return moment
end

local function exact(number)
  return string.format('%.17g', number)
end

local function hold_until(ends)
  return math.floor(ends / STEP) * STEP
end

local function is_started(set, member)
  local ends = redis.call('ZSCORE', set, member)
  return ends and ends % STEP > 0
end

-- A sorted set has the same bytes only once. The score is what `exact` gives.
local function add(set, score, member)
  local distinct = member
  while redis.call('ZADD', set, 'NX', score, distinct) == 0 do
    distinct = member .. TAG .. string.rep(' ', apart)
    apart = apart + 1
  end
  return distinct
end

local function announce(notify, count)
  if count == 1 then return redis.call('RPUSH', notify, '1') end
  local tokens = {}
  for i = 1, math.min(count, 1000) do tokens[i] = '1' end
  for from = 1, count, 1000 do
    redis.call('RPUSH', notify, unpack(tokens, 1, math.min(count - from + 1, 1000)))
  end
end

-- What is due goes to the tail of the ready ones. Gives how many that were.
local function move_due(ready, notify, delayed)
  local due = redis.call('ZRANGEBYSCORE', delayed, '-inf', exact(now()), 'LIMIT', 0, MOST)
  if #due > 0 then
    redis.call('RPUSH', ready, unpack(due))
    announce(notify, #due)
    redis.call('ZREM', delayed, unpack(due))
  end
  return #due
end

-- A server whose memory is full refuses a script whose first write could need more. This one
-- changes nothing and needs none: what follows may then take a job, or end one, and so free some.
local function even_when_full(set)
  redis.call('ZREMRANGEBYRANK', set, 1, 0)
end
