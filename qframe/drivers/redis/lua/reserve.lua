-- Holds messages, from several queues strictly in the order given.
--
-- The score of a hold is the end of its lease, and new each time: that is its fence.
--
-- KEYS  the ready list of each queue; what comes behind is for a Cluster
-- ARGV  3 how many at most   4 seconds of a hold   5 bytes for which it lasts a second more
--       6 bytes after which no more are held   7 what the keys of notes begin with
--       8 how many queues
-- Gives three things. Of each message held: the place of its queue (from 0), its bytes, its score,
-- its notes. The seconds until there may be something, -1 for ever. The places of queues that are
-- none: somebody else's keys.
local limit, hold, rate, most = tonumber(ARGV[3]), ARGV[4], ARGV[5], tonumber(ARGV[6])
local queues = tonumber(ARGV[8])
local found, bad = {}, {}
local taken, bytes, soonest = 0, 0, -1

-- What nobody settled or renewed in time goes back to the head.
-- Gives how many that were, and how many of them have a priority.
local function move_expired(ready, notify, reserved)
  local expired = redis.call('ZRANGEBYSCORE', reserved, '-inf', exact(now()), 'LIMIT', 0, MOST)
  local n, leveled = #expired, 0
  if n > 0 then
    local last_first = {}
    for i = n, 1, -1 do
      if seconds_behind(expired[i]) then
        local score = exact(front_score() - (n - i) * GRAIN)
        redis.call('ZADD', ready .. ':delayed', score, expired[i])
        leveled = leveled + 1
      else
        last_first[#last_first + 1] = expired[i]
      end
    end
    if #last_first > 0 then redis.call('LPUSH', ready, unpack(last_first)) end
    announce(notify, n)
    redis.call('ZREM', reserved, unpack(expired))
  end
  return n, leveled
end

local function expect(seconds)
  if soonest < 0 or seconds < soonest then soonest = math.max(0, seconds) end
end

local function look_ahead(set)
  local next = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')
  if next[1] then expect(tonumber(next[2]) - now()) end
end

local function notes_of(ready, member)
  local last = string.byte(member, -1)
  if last ~= 32 and last ~= 9 and last ~= 13 then return '' end
  local pad = string.match(member, '\n[ \t\r]+$')
  if pad and seconds_behind(member) then pad = string.sub(pad, 1, -SUFFIX - 1) end
  return pad and redis.call('GET', ARGV[7] .. ready .. pad) or ''
end

local function hold_one(place, reserved, member, notes)
  local score = exact(hold_until(now() + hold + #member / rate) + taken * STEP)
  local n = #found
  found[n + 1] = place
  found[n + 2] = add(reserved, score, member)
  found[n + 3] = score
  found[n + 4] = notes
  bytes = bytes + #member
  taken = taken + 1
end

local function take(place, ready, reserved)
  local count = 0
  local members, notes = redis.call('LRANGE', ready, 0, limit - taken - 1), {}
  for i, member in ipairs(members) do
    notes[i] = notes_of(ready, member) -- before any change: a Cluster may be moving them
  end
  for i, member in ipairs(members) do
    if bytes >= most then break end
    hold_one(place, reserved, member, notes[i])
    count = count + 1
  end
  if count > 0 then redis.call('LTRIM', ready, count, -1) end
  return count
end

-- The ages of what is in the list are noted once something with a priority is ready: pairs of a moment
-- and how many are there since, from the head on. A list has no moments of its own. They hold while
-- the head is the one noted before them; another one says that some were taken without a look here.
local AGES = 32 -- pairs at most; then two become one

local function read_ages(ready, left, head)
  local ages, total = {}, 0
  local noted, pairs_of = string.match(redis.call('GET', ARGV[7] .. ready) or '', '^(%x+) (.*)$')
  if noted and head and noted == redis.sha1hex(head) then
    for since, count in string.gmatch(pairs_of, '(%S+) (%S+)') do
      ages[#ages + 1] = {tonumber(since), math.min(tonumber(count), left - total)}
      total = total + ages[#ages][2]
    end
  end
  if total < left then ages[#ages + 1] = {now(), left - total} end
  if #ages > AGES then
    local fewer = {}
    for i = 1, #ages, 2 do
      local next = ages[i + 1]
      fewer[#fewer + 1] = {ages[i][1], ages[i][2] + (next and next[2] or 0)}
    end
    ages = fewer
  end
  return ages
end

local function write_ages(ready, ages, head)
  if not head then return redis.call('DEL', ARGV[7] .. ready) end
  local texts = {redis.sha1hex(head)}
  for _, age in ipairs(ages) do texts[#texts + 1] = exact(age[1]) .. ' ' .. age[2] end
  redis.call('SET', ARGV[7] .. ready, table.concat(texts, ' '), 'EX', 86400)
end

-- Holds messages of which some have a priority: each comes the level's seconds later than it became
-- ready. Gives how many were in the list, and how many had a priority.
local function take_by_rank(place, ready, reserved, left)
  local delayed, wanted = ready .. ':delayed', limit - taken
  local ranked = redis.call('ZRANGEBYSCORE', delayed, '-inf', '(0', 'WITHSCORES', 'LIMIT', 0, wanted)
  local members, notes = redis.call('LRANGE', ready, 0, wanted - 1), {}
  local ages = read_ages(ready, left, members[1])
  for i = 1, #ranked, 2 do notes[ranked[i]] = notes_of(ready, ranked[i]) end
  for _, member in ipairs(members) do notes[member] = notes_of(ready, member) end
  local count, gone = 0, {}
  while taken < limit and bytes < most do
    local first, next = ranked[2 * #gone + 1], members[count + 1]
    local rank = first and ranked[2 * #gone + 2] + BELOW
    if first and (not next or rank < ages[1][1]) then
      hold_one(place, reserved, first, notes[first])
      gone[#gone + 1] = first
    elseif next then
      hold_one(place, reserved, next, notes[next])
      count = count + 1
      ages[1][2] = ages[1][2] - 1
      if ages[1][2] == 0 then table.remove(ages, 1) end
    else
      break
    end
  end
  write_ages(ready, ages, members[count + 1] or redis.call('LRANGE', ready, count, count)[1])
  if #gone > 0 then redis.call('ZREM', delayed, unpack(gone)) end
  if count > 0 then redis.call('LTRIM', ready, count, -1) end
  return count, #gone
end

for place = 1, queues do
  local ready = KEYS[place]
  local notify, delayed, reserved = ready .. ':notify', ready .. ':delayed', ready .. ':reserved'
  local left, tokens = redis.pcall('LLEN', ready), redis.pcall('LLEN', notify)
  local later, held = redis.pcall('ZCARD', delayed), redis.pcall('ZCARD', reserved)
  local wrong = nil
  for _, said in ipairs({left, tokens, later, held}) do
    if type(said) == 'table' then wrong = said end
  end
  if wrong then
    if not string.find(wrong.err, 'WRONGTYPE', 1, true) then return wrong end
    bad[#bad + 1] = place - 1
  else
    if left + later + held > 0 then even_when_full(reserved) end
    local back, listed, any_leveled, returned, leveled = 0, 0, false, 0, 0
    if later > 0 then back, listed, any_leveled = move_due(ready, notify, delayed) end
    if held > 0 then returned, leveled = move_expired(ready, notify, reserved) end
    left, tokens = left + listed + returned - leveled, tokens + back + returned
    any_leveled = any_leveled or back > listed or leveled > 0
    local in_set = any_leveled and redis.call('ZCOUNT', delayed, '-inf', '(0') or 0
    local count = 0
    if left + in_set > 0 and limit > taken and bytes < most then
      if in_set > 0 then
        local plain, gone = take_by_rank(place - 1, ready, reserved, left)
        count = plain + gone
      else
        count = take(place - 1, ready, reserved)
      end
    end
    left = left + in_set - count
    -- One token for each ready job wakes one worker each; an empty queue leaves at most one.
    local wanted = math.max(left, 1)
    if left > 0 and tokens <= count then
      redis.call('DEL', notify)
      redis.call('RPUSH', notify, '1')
    elseif count > 0 or tokens - count > wanted then
      redis.call('LTRIM', notify, count, count + wanted - 1)
    end
    if left > 0 then expect(0) end
    if limit > 0 and (taken >= limit or bytes >= most) then break end
    if taken == 0 then
      if later > 0 then look_ahead(delayed) end
      if held > 0 then look_ahead(reserved) end
    end
  end
end
if taken == 0 and soonest ~= 0 and #bad == 0 then
  -- Whoever asked will wait knowing all this: tokens from before say nothing new.
  for place = 1, queues do redis.call('DEL', KEYS[place] .. ':notify') end
end
return {found, exact(soonest), bad}
