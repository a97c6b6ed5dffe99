-- What several scripts use; put before each of them.
--
-- Members are payloads and opaque: nothing here reads or writes JSON. Scores are moments of this
-- server's clock, in seconds. Whatever is moved is added first and removed last, since a script
-- that fails on its way is not rolled back.

local HOLD = 1 -- seconds the lease of a job lasts that is only held
local BATCH = 100 -- as many are moved in one step: bounded, and few enough for unpack
local STEP = 1 / 1048576 -- keeps the order of what shares a moment; doubles hold it until 2106

local function now()
  local time = redis.call('TIME')
  return time[1] + time[2] / 1000000
end

local function exact(number)
  return string.format('%.17g', number)
end

-- A server whose memory is full refuses a script whose first write could need more. This one
-- changes nothing and needs none: what follows may then take a job, or end one, and so free some.
local function even_when_full(set)
  redis.call('ZREMRANGEBYRANK', set, 1, 0)
end

local function announce(notify, count)
  local tokens = {}
  for i = 1, math.min(count, BATCH) do tokens[i] = '1' end
  while count > 0 do
    local n = math.min(count, BATCH)
    redis.call('RPUSH', notify, unpack(tokens, 1, n))
    count = count - n
  end
end

-- The same bytes can be in a sorted set only once. The second job of the same bytes is given other
-- white space after a line feed, which no reader of JSON sees and our own takes off again.
local function apart(member, number)
  local bits = {}
  repeat
    bits[#bits + 1] = number % 2 == 1 and '\t' or ' '
    number = math.floor(number / 2)
  until number == 0
  return (string.match(member, '^(.*)\n[ \t]*$') or member) .. '\n' .. table.concat(bits)
end

local function add(set, score, member)
  local number = 0
  while redis.call('ZADD', set, 'NX', score, member) == 0 do
    if number == 0 then number = tonumber(redis.call('TIME')[2]) end
    member = apart(member, number)
    number = number + 1
  end
  return member
end

local function move_due(delayed, ready, notify, moment)
  local due = redis.call('ZRANGEBYSCORE', delayed, '-inf', exact(moment), 'LIMIT', 0, BATCH)
  if #due > 0 then
    redis.call('RPUSH', ready, unpack(due))
    announce(notify, #due)
    redis.call('ZREM', delayed, unpack(due))
  end
end

-- A delay that became the next one to end: who waits for a later one is woken to look again.
local function wake_for_earliest(delayed, notify, member)
  if redis.call('ZRANGE', delayed, 0, 0)[1] == member and redis.call('LLEN', notify) == 0 then
    redis.call('RPUSH', notify, '1')
  end
end

-- Lists something by a moment; what is of about one moment in the order in which it was listed.
local function list_last(order, name, moment)
  local score = tonumber(moment)
  local latest = tonumber(redis.call('ZREVRANGE', order, 0, 0, 'WITHSCORES')[2])
  if latest and latest >= score and latest < score + 1 then score = latest + STEP end
  redis.call('ZADD', order, exact(score), name)
end

-- Failed jobs are listed by when they failed.
local function record(records, order, uuid, text, moment)
  redis.call('HSET', records, uuid, text)
  redis.call('ZREM', order, uuid)
  list_last(order, uuid, moment)
end

local function push(ready, notify, delayed, delay, messages, first)
  if delay > 0 then
    local moment = now()
    for i = first, #messages do
      local member = add(delayed, exact(moment + delay + (i - first) * STEP), messages[i])
      if i == first then wake_for_earliest(delayed, notify, member) end
    end
  else
    if redis.call('ZCARD', delayed) > 0 then
      move_due(delayed, ready, notify, now()) -- they became ready before
    end
    for from = first, #messages, BATCH do
      redis.call('RPUSH', ready, unpack(messages, from, math.min(from + BATCH - 1, #messages)))
    end
    announce(notify, #messages - first + 1)
  end
end

-- The moment a hold ends is a multiple of STEP, that of a started job's lease half a STEP more.
local function hold_until(moment)
  return math.floor(moment / STEP) * STEP
end

local function lease_until(moment)
  return hold_until(moment) + STEP / 2
end

-- Frees the lock of a unique job; its value is the uuid of the job that has it.
local function free(lock, uuid)
  if redis.call('GET', lock) == uuid then redis.call('DEL', lock) end
end

-- Whether a reservation still is the one that was made: its score is new each time. Where an answer
-- got lost and its owner does not know the score, '', a started job's is its own: the bytes are no
-- one else's, and others could only hold it.
local function holds(reserved, member, score)
  local found = redis.call('ZSCORE', reserved, member)
  if not found then return false end
  if score == '' then return tonumber(found) % STEP > 0 end
  return tonumber(found) == tonumber(score)
end
