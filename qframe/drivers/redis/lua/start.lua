-- Starts a held job, and deletes the one done before it: so most jobs move, and this takes half as
-- long as `apply`, in the server and in the worker.
--
-- Said twice it is done once.
--
-- KEYS  1 reserved   2 reserved, of the job done, if any
-- ARGV  2 'start', by which a request is known on the line   3 the held member   4 its score
--       5 the member once started   6 seconds of the lease
--       7 the key of its notes so far or ''   8 from now on, or ''   9 notes
--       10 the done member or ''   11 the key of its notes or ''
-- Gives 1 where all was done; else whether the one is started, and whether the other was deleted.
local KEPT = 90 * 86400 -- seconds the notes on a message are kept

local function is_started(set, member)
  local ends = redis.call('ZSCORE', set, member)
  return ends and ends % STEP > 0
end

local reserved, held, started, done = KEYS[1], ARGV[3], ARGV[5], ARGV[10]
local deleted, begun = 1, 1
even_when_full(reserved)
if done ~= '' then
  if is_started(KEYS[2], done) then
    redis.call('ZREM', KEYS[2], done)
    if ARGV[11] ~= '' then redis.call('DEL', ARGV[11]) end
  else
    deleted = 0
  end
end
local ends = redis.call('ZSCORE', reserved, held)
if ends and ends - ARGV[4] == 0 then
  redis.call('ZADD', reserved, exact(hold_until(now() + ARGV[6]) + STEP / 2), started)
  redis.call('ZREM', reserved, held)
  if ARGV[7] ~= '' then redis.call('DEL', ARGV[7]) end
  if ARGV[8] ~= '' then redis.call('SET', ARGV[8], ARGV[9], 'EX', KEPT) end
elseif not is_started(reserved, started) then
  begun = 0
end
return begun + deleted == 2 and 1 or {begun, deleted}
