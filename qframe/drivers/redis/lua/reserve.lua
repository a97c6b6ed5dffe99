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
local function move_expired(ready, notify, reserved)
  local expired = redis.call('ZRANGEBYSCORE', reserved, '-inf', exact(now()), 'LIMIT', 0, MOST)
  local n = #expired
  if n > 0 then
    local last_first = {}
    for i = 1, n do last_first[i] = expired[n + 1 - i] end
    redis.call('LPUSH', ready, unpack(last_first))
    announce(notify, n)
    redis.call('ZREM', reserved, unpack(expired))
  end
  return n
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
  return pad and redis.call('GET', ARGV[7] .. ready .. pad) or ''
end

local function take(place, ready, reserved)
  local count = 0
  local members, notes = redis.call('LRANGE', ready, 0, limit - taken - 1), {}
  for i, member in ipairs(members) do
    notes[i] = notes_of(ready, member) -- before any change: a Cluster may be moving them
  end
  for i, member in ipairs(members) do
    if bytes >= most then break end
    local score = exact(hold_until(now() + hold + #member / rate) + taken * STEP)
    local n = #found
    found[n + 1] = place
    found[n + 2] = add(reserved, score, member)
    found[n + 3] = score
    found[n + 4] = notes[i]
    bytes = bytes + #member
    taken = taken + 1
    count = count + 1
  end
  if count > 0 then redis.call('LTRIM', ready, count, -1) end
  return count
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
    local back = later > 0 and move_due(ready, notify, delayed) or 0
    back = back + (held > 0 and move_expired(ready, notify, reserved) or 0)
    left, tokens = left + back, tokens + back
    local count = left > 0 and limit > taken and bytes < most and take(place - 1, ready, reserved) or 0
    left = left - count
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
