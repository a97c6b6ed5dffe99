-- Applies steps, in order, each by itself: all operations of one, or none.
--
-- KEYS  1 the number of the last exchange of this caller, or any key of this slot
-- ARGV  3 number of this exchange, or '': said twice it does no harm
--       4 the set of the names of queues, or ''   5 what the keys of facts begin with
--       6 a sorted set to touch where this is to be done even when the memory is full, or ''
--       7.. steps: how many words one has with this, then its operations, checks first
-- Gives 1 where all were applied. Else for each 1; 0 where the lease was lost; {'refused', key, what
-- it holds}; {'done', new score of a hold or '', queue, message, delay, priority of what is due, ...}.
local NUMBER = tonumber(ARGV[3])
NAMES = ARGV[4]

if ARGV[6] ~= '' then even_when_full(ARGV[6]) end
local last = NUMBER and tonumber(redis.call('GET', KEYS[1]) or 0)
if NUMBER and last >= NUMBER then -- said again
  redis.call('EXPIRE', KEYS[1], 86400) -- a change, whose replicas have the first one too
  local number, results = string.match(redis.call('GET', KEYS[1] .. ':results') or '', '^(%d+) (.*)$')
  return number == ARGV[3] and cmsgpack.unpack(results) or 1
end

local reserved, member, begun -- of its reservation

-- Writes notes, COUNT and TEXT; a count alone leaves the text.
local function note(key, text)
  if text == '' then return end
  if not string.find(text, ' ', 1, true) then
    text = text .. (string.match(redis.call('GET', key) or '', ' .*$') or ' ')
  end
  redis.call('SET', key, text, 'EX', KEPT)
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
        result = d ~= '' and is_started(a, d) and 1 or 0 -- all of it was done before, or is not now
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
    elseif op == 'note' then -- key of notes, notes
      note(a, b)
      i = i + 3
    elseif op == 'aside' then -- ready, message
      redis.call('RPUSH', a .. ':buried', b)
      if NAMES ~= '' then redis.call('SADD', NAMES, a) end
      i = i + 3
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
        if seconds_behind(b) then
          redis.call('ZADD', a .. ':delayed', exact(front_score()), b)
        else
          redis.call('LPUSH', a, b)
        end
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
      of_facts = of_facts or about_facts(ARGV[5])
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
