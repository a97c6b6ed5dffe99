-- What several scripts use; put before each of them.
--
-- Keys of a queue, {name} in braces on a Cluster: queues:name is the list of what is ready,
-- :delayed and :reserved are sorted sets by moments of this server's clock, :notify has a token for
-- each job that somebody may wait for, :buried is what was put aside. What is ready and has a
-- priority is in :delayed, too, with a score below zero, where PHP takes it for due. All hold whole payloads, which
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

-- White space behind that of a message says how many seconds it comes behind others (`level` in
-- message.py); nil where there is none.
local SUFFIX, LEVELED = 16, 50 -- its length, and that of all white space of such a message

local function seconds_behind(member)
  if string.byte(member, -SUFFIX) ~= 13 or string.byte(member, -LEVELED) ~= 10 then return nil end
  if not string.find(member, '^\n[ \t\r]+$', -LEVELED) then return nil end
  local number = 0
  for i = 1 - SUFFIX, -1 do
    local c = string.byte(member, i)
    number = number * 3 + (c == 32 and 0 or c == 9 and 1 or 2)
  end
  return number - 4194304
end

-- Where a ready message with a priority is in :delayed: its score is its place among all of its
-- queue, less this.
local BELOW = 17179869184
local GRAIN = STEP * 4 -- that its score holds

local function ready_score(behind)
  apart = apart + 1
  return now() + behind + apart * GRAIN - BELOW
end

-- The score of one that comes before all others, and before what came there so.
local function front_score()
  return -now() - BELOW
end

-- Gives the same message with other white space.
local function another(member)
  local n, white = apart, {}
  apart = apart + 1
  if not seconds_behind(member) then return member .. TAG .. string.rep(' ', n) end
  for i = 1, 16 do
    local digit = n % 3
    white[i] = digit == 0 and ' ' or digit == 1 and '\t' or '\r'
    n = (n - digit) / 3
  end
  local kept = string.sub(TAG, 1, LEVELED - SUFFIX - 16)
  return string.sub(member, 1, -LEVELED - 1) .. kept .. table.concat(white) .. string.sub(member, -SUFFIX)
end

-- A sorted set has the same bytes only once. The score is what `exact` gives.
local function add(set, score, member)
  local distinct = member
  while redis.call('ZADD', set, 'NX', score, distinct) == 0 do distinct = another(member) end
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

-- Makes messages ready that have no priority, or one. Gives those that have none.
local function make_ready(ready, delayed, members)
  local plain = {}
  for i = 1, #members do
    local behind = seconds_behind(members[i])
    if behind then
      redis.call('ZADD', delayed, exact(ready_score(behind)), members[i])
    else
      plain[#plain + 1] = members[i]
    end
  end
  if #plain > 0 then redis.call('RPUSH', ready, unpack(plain)) end
  return plain
end

-- What is due goes to the tail of the ready ones. Gives how many that were, how many of them are in
-- the list, and whether some with a priority were ready before.
local function move_due(ready, notify, delayed)
  local due = redis.call('ZRANGEBYSCORE', delayed, '-inf', exact(now()), 'WITHSCORES', 'LIMIT', 0, MOST)
  if #due == 0 then return 0, 0, false end
  local leveled, members = tonumber(due[2]) < 0, {}
  if leveled then
    members = redis.call('ZRANGEBYSCORE', delayed, '0', exact(now()), 'LIMIT', 0, MOST)
    if #members == 0 then return 0, 0, true end
  else
    for i = 1, #due, 2 do members[#members + 1] = due[i] end
  end
  local plain = make_ready(ready, delayed, members)
  announce(notify, #members)
  if #plain > 0 then redis.call('ZREM', delayed, unpack(plain)) end
  return #members, #plain, leveled
end

-- A server whose memory is full refuses a script whose first write could need more. This one
-- changes nothing and needs none: what follows may then take a job, or end one, and so free some.
local function even_when_full(set)
  redis.call('ZREMRANGEBYRANK', set, 1, 0)
end
