-- How a status is kept, put before the scripts that change one: five lines, of which these read
-- only the first. `LIFE ATTEMPT STATE`, then JSON: queued, started, ended, progress; or nothing.
--
-- A note's first line is `PART LIFE ATTEMPT COUNTED STATE MILLISECONDS KEPT`: which part of a move's
-- reply is about its job, the attempt this is said of and the attempts counted from now on, how long
-- it is kept, and how many lines stay as they are, if there are any of this life: 1 or 2. Its other
-- lines: queued, then what follows those that stay; as progress, `=` leaves what there is.
local FINAL = {COMPLETE = true, SKIPPED = true, FAILED = true, CANCELLED = true}

local function line_end(text, from)
  return string.find(text, '\n', from, true)
end

-- Takes a note unless the status is further on: of a later life or attempt, or final.
local function take(key, text)
  local life, attempt, counted, state, ms, kept, at = string.match(
    text, '^%S+ (%d+) (%d+) (%d+) (%u+) (%d+) (%d)\n()')
  local stop = line_end(text, at)
  local before, rest = string.sub(text, at, stop), string.sub(text, stop + 1)
  if kept == '2' then before = before .. '\n' end
  local progress = ''
  local old = redis.call('GET', key)
  local old_life, old_attempt, old_state
  if old then old_life, old_attempt, old_state, at = string.match(old, '^(%d+) (%d+) (%u+)\n()') end
  if old_life == life then
    if FINAL[old_state] or tonumber(attempt) < tonumber(old_attempt) then return 0 end
    stop = line_end(old, at)
    local second = line_end(old, stop + 1)
    before = string.sub(old, at, kept == '2' and second or stop)
    progress = string.sub(old, line_end(old, second + 1) + 1)
  elseif old_life and tonumber(old_life) > tonumber(life) then
    return 0
  end
  if string.byte(rest, -1) == 61 then rest = string.sub(rest, 1, -2) .. progress end
  redis.call('SET', key, life .. ' ' .. counted .. ' ' .. state .. '\n' .. before .. rest, 'PX', ms)
  return 1
end
