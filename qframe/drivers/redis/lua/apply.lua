-- Applies steps, in order, each by itself: all operations of one, or none.
--
-- KEYS  1 the number of the last exchange of this caller, or any key of this slot
-- ARGV  3 number of this exchange, or '': said twice it does no harm
--       4 the set of the names of queues, or ''   5 what the keys of facts begin with
--       6 a sorted set to touch where this is to be done even when the memory is full, or ''
--       7.. steps: how many words one has with this, then its operations, checks first
-- Gives 1 where all were applied. Else for each 1; 0 where the lease was lost; {'refused', key, what
-- it holds}; {'done', new score of a hold or '', queue, message, delay, priority of what is due, ...}.
local KEPT = 90 * 86400 -- seconds the notes on a message are kept
local NUMBER = tonumber(ARGV[3])

if ARGV[6] ~= '' then even_when_full(ARGV[6]) end
local last = NUMBER and tonumber(redis.call('GET', KEYS[1]) or 0)
if NUMBER and last >= NUMBER then -- said again
  redis.call('EXPIRE', KEYS[1], 86400) -- a change, whose replicas have the first one too
  local number, results = string.match(redis.call('GET', KEYS[1] .. ':results') or '', '^(%d+) (.*)$')
  return number == ARGV[3] and cmsgpack.unpack(results) or 1
end

local result -- of a step
local reserved, member, begun -- of its reservation

local function push(ready, delay, messages, first, last)
  local notify, delayed = ready .. ':notify', ready .. ':delayed'
  local length
  if delay > 0 then
    for i = first, last do
      local distinct = add(delayed, exact(now() + delay + apart * STEP), messages[i])
      apart = apart + 1
      -- Who waits for a later one is woken to look again.
      if redis.call('ZRANK', delayed, distinct) == 0 and redis.call('LLEN', notify) == 0 then
        redis.call('RPUSH', notify, '1')
      end
    end
    length = redis.call('ZCARD', delayed)
  else
    if redis.call('ZCARD', delayed) > 0 then
      move_due(ready, notify, delayed) -- they became ready before
    end
    for from = first, last, 1000 do
      length = redis.call('RPUSH', ready, unpack(messages, from, math.min(from + 999, last)))
    end
    announce(notify, last - first + 1)
  end
  if length == last - first + 1 and ARGV[4] ~= '' then redis.call('SADD', ARGV[4], ready) end
end

-- Writes notes, COUNT and TEXT; a count alone leaves the text.
local function note(key, text)
  if text == '' then return end
  if not string.find(text, ' ', 1, true) then
    text = text .. (string.match(redis.call('GET', key) or '', ' .*$') or ' ')
  end
  redis.call('SET', key, text, 'EX', KEPT)
end

-- Gives the function that does all that is not about messages; most calls need none of it.
local function about_facts()
  local FACTS, SKEW = ARGV[5], tonumber(ARGV[1])

  -- Whether a key is gone by the clock that was set forward.
  local function is_over(key)
    if SKEW <= 0 then return false end
    local left = redis.call('PTTL', key)
    return left >= 0 and left <= SKEW * 1000
  end

  local function milliseconds(ttl)
    return math.max(1, math.floor((ttl + SKEW) * 1000))
  end

  -- Gives what a fact holds, and its rank, which stands before it between zeros.
  local function fact(key)
    local text = redis.call('GET', key)
    if not text or is_over(key) then return false, 0 end
    if string.byte(text) == 0 then
      local rank, value = string.match(text, '^%z(%d+)%z(.*)$')
      return value, tonumber(rank)
    end
    return text, 0
  end

  local function set(key, text, ttl)
    if ttl == '' then
      redis.call('SET', key, text)
    else
      redis.call('SET', key, text, 'PX', milliseconds(ttl))
    end
  end

  -- A latch is a hash, the bits of those done, and those that failed as NUMBER:LABEL.
  local function latch_keys(name)
    return FACTS .. 'latch:' .. name, FACTS .. 'done:' .. name, FACTS .. 'lost:' .. name
  end

  local function keep(name)
    local latch, done, lost = latch_keys(name)
    local ttl = milliseconds(redis.call('HGET', latch, 'ttl'))
    redis.call('PEXPIRE', latch, ttl)
    redis.call('PEXPIRE', done, ttl)
    redis.call('PEXPIRE', lost, ttl)
  end

  local function read_latch(name)
    local latch, done, lost = latch_keys(name)
    if is_over(latch) then redis.call('DEL', latch, done, lost) end
    local values = redis.call('HMGET', latch, 'size', 'done', 'failed', 'closed', 'first', 'every')
    if not values[1] then return nil end
    return {
      size = tonumber(values[1]), done = tonumber(values[2]), failed = tonumber(values[3]),
      closed = values[4], first = values[5], every = tonumber(values[6])
    }
  end

  local function is_complete(latch)
    return latch.closed and latch.done + latch.failed >= latch.size
  end

  -- Notes a member; says whether this makes `then` due.
  local function arrive(name, found, number, failed, label)
    local latch, done, lost = latch_keys(name)
    if failed then
      if redis.call('GETBIT', done, number) == 1 then return false end
      if redis.call('ZCOUNT', lost, number, number) == 0 then
        redis.call('ZADD', lost, number, number .. ':' .. label)
        found.failed = redis.call('HINCRBY', latch, 'failed', 1)
      end
      if not found.first then
        found.first = number
        redis.call('HSET', latch, 'first', number, 'failed_at', exact(now()))
      end
      return found.first == number
    end
    if redis.call('SETBIT', done, number, 1) == 0 then
      found.done = redis.call('HINCRBY', latch, 'done', 1)
      if redis.call('ZREMRANGEBYSCORE', lost, number, number) > 0 then
        found.failed = redis.call('HINCRBY', latch, 'failed', -1)
      end
    end
    return found.every > 0 and found.done % found.every == 0
  end

  -- Pushes what is due, or hands it over.
  local function release_then(name, pushes)
    local latch = latch_keys(name)
    local found = redis.call('HMGET', latch, 'ready', 'queue', 'raw', 'delay', 'priority')
    if pushes then return push(found[1], tonumber(found[4]), found, 3, 3) end
    if result == 1 then result = {'done', ''} end
    for i = 2, 5 do result[#result + 1] = found[i] end
  end

  local function change_latch(name, number, failed, label, pushes)
    local latch, found = latch_keys(name), read_latch(name)
    if not found then return end
    local due, counts = false, true
    if number then
      counts = tonumber(number) >= 0 and tonumber(number) < found.size
      due = counts and arrive(name, found, number, failed, label)
    else
      redis.call('HSET', latch, 'closed', 1)
      found.closed = true
    end
    if counts and is_complete(found) then
      redis.call('HSETNX', latch, 'completed_at', exact(now()))
      due = true
    end
    keep(name)
    if due then release_then(name, pushes) end
  end

  -- Does one operation; gives the place of the next, nothing where it refuses the step.
  return function(op, i)
    local a, b, c, d = ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
    if op == 'expect' then -- key, '=value' or ''
      local holds = fact(FACTS .. ':' .. a)
      if (holds and '=' .. holds or '') == b then return i + 3 end
      result = {'refused', a, holds}
    elseif op == 'set' then -- key, value, ttl or ''
      set(FACTS .. ':' .. a, b, c)
      return i + 4
    elseif op == 'unset' then -- key, '=value' or ''
      local key = FACTS .. ':' .. a
      if b == '' or '=' .. (fact(key) or '') == b then redis.call('DEL', key) end
      return i + 3
    elseif op == 'raise' then -- key, rank, value, ttl
      local key = FACTS .. ':' .. a
      local holds, rank = fact(key)
      if not holds or rank <= tonumber(b) then set(key, '\0' .. b .. '\0' .. c, d) end
      return i + 5
    elseif op == 'add' then -- key, number, ttl or ''
      local key = FACTS .. ':' .. a
      if is_over(key) then redis.call('DEL', key) end
      redis.call('INCRBY', key, b)
      if c == '' then redis.call('PERSIST', key) else redis.call('PEXPIRE', key, milliseconds(c)) end
      return i + 4
    elseif op == 'open' then -- latch, every, ttl, ready, queue, message, delay, priority
      if not read_latch(a) then
        local latch = latch_keys(a)
        redis.call('HSET', latch, 'size', 0, 'done', 0, 'failed', 0, 'every', b, 'ttl', c,
          'ready', d, 'queue', ARGV[i + 5], 'raw', ARGV[i + 6], 'delay', ARGV[i + 7],
          'priority', ARGV[i + 8])
        keep(a)
      end
      return i + 9
    elseif op == 'extendable' then -- latch
      local latch = read_latch(a)
      if latch and not is_complete(latch) then return i + 2 end
      result = {'refused', a, false}
    elseif op == 'extend' then -- latch, size
      local latch, found = latch_keys(a), read_latch(a)
      if found then
        if found.size < tonumber(b) then redis.call('HSET', latch, 'size', b) end
        keep(a)
      end
      return i + 3
    elseif op == 'arrive' then -- latch, member, '1' if it failed, label, '1' to push
      change_latch(a, b, c == '1', d, ARGV[i + 5] == '1')
      return i + 6
    elseif op == 'close' then -- latch, '1' to push
      change_latch(a, nil, false, '', b == '1')
      return i + 3
    elseif op == 'recorded' then -- uuid
      if redis.call('HEXISTS', FACTS .. 'failed', a) == 1 then return i + 2 end
      result = {'refused', a, false}
    elseif op == 'record' then -- uuid, record; listed in the order in which they are recorded
      local order = FACTS .. 'order'
      redis.call('HSET', FACTS .. 'failed', a, b)
      redis.call('ZREM', order, a)
      local latest = tonumber(redis.call('ZREVRANGE', order, 0, 0, 'WITHSCORES')[2] or 0)
      redis.call('ZADD', order, exact(math.max(now(), latest + STEP)), a)
      return i + 3
    elseif op == 'forget' then -- uuid
      redis.call('HDEL', FACTS .. 'failed', a)
      redis.call('ZREM', FACTS .. 'order', a)
      return i + 2
    end
  end
end

local i, words = 7, #ARGV
local all, results, of_facts = true, {}, nil
while i <= words do
  local stop = i + ARGV[i]
  i = i + 1
  result = 1
  while i < stop do
    local op, a, b, c, d = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
    if op == 'fence' then -- reserved, member, score of a hold or '', member once started or ''
      reserved, member, begun = a, b, d
      local ends = redis.call('ZSCORE', a, b)
      if ends and ((c == '' and ends % STEP > 0) or (c ~= '' and ends - c == 0)) then
        i = i + 5
      else
        ends = d ~= '' and redis.call('ZSCORE', a, d)
        result = ends and ends % STEP > 0 and 1 or 0 -- all of it was done before, or is not now
        i = stop
      end
    elseif op == 'delete' then -- key of notes or ''
      redis.call('ZREM', reserved, member)
      if a ~= '' then redis.call('DEL', a) end
      i = i + 2
    elseif op == 'start' then -- lease, old key of notes, new one, notes
      redis.call('ZADD', reserved, exact(hold_until(now() + a) + STEP / 2), begun)
      redis.call('ZREM', reserved, member)
      if b ~= '' then redis.call('DEL', b) end
      note(c, d)
      i = i + 5
    elseif op == 'push' then -- ready, delay, how many, messages
      local last = i + 3 + c
      push(a, tonumber(b), ARGV, i + 4, last)
      i = last + 1
    elseif op == 'renew' then -- lease, whether started, key of notes, notes
      local score = hold_until(now() + a) + (b == '1' and STEP / 2 or 0)
      redis.call('ZADD', reserved, 'XX', exact(score), member)
      if b ~= '1' then
        if result == 1 then result = {'done', ''} end
        result[2] = exact(score)
      end
      note(c, d)
      i = i + 5
    elseif op == 'release' then -- ready, member, 'head', 'tail' or delay, key of notes, notes
      note(d, ARGV[i + 5])
      if c == 'head' then
        redis.call('LPUSH', a, b)
        announce(a .. ':notify', 1)
      else
        push(a, tonumber(c) or 0, ARGV, i + 2, i + 2)
      end
      redis.call('ZREM', reserved, member)
      i = i + 6
    elseif op == 'bury' then -- buried, member, key of notes, notes
      note(c, d)
      redis.call('RPUSH', a, b)
      redis.call('ZREM', reserved, member)
      i = i + 5
    else
      of_facts = of_facts or about_facts()
      i = of_facts(op, i) or stop
    end
  end
  all = all and result == 1
  results[#results + 1] = result
end
-- Noted at the end: what fails on its way was not done, and may be said again.
if NUMBER and last > 0 and last == NUMBER - 1 then
  redis.call('INCR', KEYS[1])
elseif NUMBER then -- it is the first, or was forgotten
  redis.call('SET', KEYS[1], NUMBER, 'EX', 86400)
end
if all then return 1 end
if NUMBER then
  redis.call('SET', KEYS[1] .. ':results', NUMBER .. ' ' .. cmsgpack.pack(results), 'EX', 3600)
end
return results
