-- What `apply` and `start` have in common; put before both.
local NAMES = '' -- the set of the names of queues, where these are noted
local result -- of a step

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
  elseif seconds_behind(messages[first]) then -- all of a push have the same priority
    for i = first, last do
      add(delayed, exact(ready_score(seconds_behind(messages[i]))), messages[i])
    end
    announce(notify, last - first + 1)
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
  if length == last - first + 1 and NAMES ~= '' then redis.call('SADD', NAMES, ready) end
end

-- Where the clock was set forward, keys end so much earlier than they do.
local SKEW = tonumber(ARGV[1])

local function is_over(key)
  if SKEW <= 0 then return false end
  local left = redis.call('PTTL', key)
  return left >= 0 and left <= SKEW * 1000
end

local function milliseconds(ttl)
  return math.max(1, math.floor((ttl + SKEW) * 1000))
end

-- Gives the function that does operations on latches. Most calls need none: they make neither it nor
-- what it is made of, some 2 us.
--
-- FACTS is what the keys of facts begin with.
local function about_latches(FACTS)
  -- A latch is a hash, and a sorted set of the members that failed, as NUMBER:LABEL. Those done are
  -- bits of the hash, some in a field: a member arrives with three commands, instead of eight with
  -- keys of their own, which were to be kept alive, too.
  local BITS = 48 -- that a number holds exactly

  local function latch_keys(name)
    return FACTS .. 'latch:' .. name, FACTS .. 'lost:' .. name
  end

  local function bits_of(number)
    return 'bits' .. math.floor(number / BITS), 2 ^ (number % BITS)
  end

  local function keep(name, found)
    local latch, lost = latch_keys(name)
    local ttl = milliseconds(found.ttl)
    redis.call('PEXPIRE', latch, ttl)
    if found.failed > 0 then redis.call('PEXPIRE', lost, ttl) end
  end

  -- Gives what a latch holds, with the bits of one field.
  local function read_latch(name, field)
    local latch, lost = latch_keys(name)
    if is_over(latch) then redis.call('DEL', latch, lost) end
    local values = redis.call('HMGET', latch, 'size', 'done', 'failed', 'closed', 'first', 'every',
      'ttl', field or 'bits0')
    if not values[1] then return nil end
    return {
      size = tonumber(values[1]), done = tonumber(values[2]), failed = tonumber(values[3]),
      closed = values[4], first = values[5], every = tonumber(values[6]), ttl = values[7],
      bits = tonumber(values[8] or 0)
    }
  end

  local function is_complete(latch)
    return latch.closed and latch.done + latch.failed >= latch.size
  end

  -- Notes a member; says whether this makes `then` due.
  local function arrive(name, found, number, failed, label)
    local latch, lost = latch_keys(name)
    local field, bit = bits_of(number)
    local is_done = math.floor(found.bits / bit) % 2 == 1
    if failed then
      if is_done then return false end
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
    if not is_done then
      found.done = found.done + 1
      redis.call('HSET', latch, field, string.format('%.0f', found.bits + bit), 'done', found.done)
      if found.failed > 0 and redis.call('ZREMRANGEBYSCORE', lost, number, number) > 0 then
        found.failed = redis.call('HINCRBY', latch, 'failed', -1)
      end
    end
    return found.every > 0 and found.done % found.every == 0
  end

  -- Takes back that a member has arrived.
  local function leave(name, number)
    local field, bit = bits_of(number)
    local latch, lost = latch_keys(name)
    local found = read_latch(name, field)
    if not found then return end
    local has_failed = redis.call('ZREMRANGEBYSCORE', lost, number, number) > 0
    local is_done = math.floor(found.bits / bit) % 2 == 1
    if has_failed then
      found.failed = redis.call('HINCRBY', latch, 'failed', -1)
    elseif is_done then
      redis.call('HSET', latch, field, string.format('%.0f', found.bits - bit))
      redis.call('HINCRBY', latch, 'done', -1)
    end
    if has_failed or is_done then
      redis.call('HDEL', latch, 'completed_at')
      if found.first == number then redis.call('HDEL', latch, 'first', 'failed_at') end
    end
    keep(name, found)
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
    local latch, found = latch_keys(name), read_latch(name, number and bits_of(number))
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
    keep(name, found)
    if due then release_then(name, pushes) end
  end

  return function(op, i)
    local a, b, c, d = ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
    if op == 'arrive' then -- latch, member, '1' if it failed, label, '1' to push
      change_latch(a, b, c == '1', d, ARGV[i + 5] == '1')
      return i + 6
    elseif op == 'open' then -- latch, every, ttl, ready, queue, message, delay, priority
      if not read_latch(a) then
        local latch = latch_keys(a)
        redis.call('HSET', latch, 'size', 0, 'done', 0, 'failed', 0, 'every', b, 'ttl', c,
          'ready', d, 'queue', ARGV[i + 5], 'raw', ARGV[i + 6], 'delay', ARGV[i + 7],
          'priority', ARGV[i + 8])
        keep(a, {ttl = c, failed = 0})
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
        keep(a, found)
      end
      return i + 3
    elseif op == 'leave' then -- latch, member
      leave(a, b)
      return i + 3
    elseif op == 'close' then -- latch, '1' to push
      change_latch(a, nil, false, '', b == '1')
      return i + 3
    end
  end
end

-- Gives the function that does operations on facts, latches and failed records, made as they are.
--
-- It is given an operation and its place, and gives the place of the next, nothing where it refuses
-- the step.
local function about_facts(FACTS)
  local of_latches

  local function fact(key)
    local text = redis.call('GET', key)
    if not text or is_over(key) then return false end
    return string.byte(text) == 0 and string.match(text, '^%z%d+%z(.*)$') or text
  end

  local function set(key, text, ttl)
    if ttl == '' then
      redis.call('SET', key, text)
    else
      redis.call('SET', key, text, 'PX', milliseconds(ttl))
    end
  end

  return function(op, i)
    local a, b, c, d = ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
    if op == 'raise' then -- key, rank, value, ttl; the rank stands before the value, between zeros
      local key = FACTS .. ':' .. a
      local rank = string.match(redis.call('GET', key) or '', '^%z(%d+)%z')
      if not rank or tonumber(rank) <= tonumber(b) or is_over(key) then
        set(key, '\0' .. b .. '\0' .. c, d)
      end
      return i + 5
    elseif op == 'unset' then -- key, '=value' or ''
      local key = FACTS .. ':' .. a
      if b == '' or '=' .. (fact(key) or '') == b then redis.call('DEL', key) end
      return i + 3
    elseif op == 'expect' then -- key, '=value' or ''
      local holds = fact(FACTS .. ':' .. a)
      if (holds and '=' .. holds or '') == b then return i + 3 end
      result = {'refused', a, holds}
    elseif op == 'set' then -- key, value, ttl or ''
      set(FACTS .. ':' .. a, b, c)
      return i + 4
    elseif op == 'add' then -- key, number, ttl or ''
      local key = FACTS .. ':' .. a
      if is_over(key) then redis.call('DEL', key) end
      redis.call('INCRBY', key, b)
      if c == '' then redis.call('PERSIST', key) else redis.call('PEXPIRE', key, milliseconds(c)) end
      return i + 4
    elseif op == 'recorded' then -- uuid, failed_at or ''
      local record = redis.call('HGET', FACTS .. 'failed', a)
      if record and (b == '' or cjson.decode(record).failed_at == tonumber(b)) then return i + 3 end
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
    else
      of_latches = of_latches or about_latches(FACTS)
      return of_latches(op, i)
    end
  end
end
