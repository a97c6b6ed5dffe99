-- Counts the jobs of a queue by state.
--
-- KEYS  1 ready   2 delayed   3 reserved   4 buried
-- Gives ready (with what is due or whose lease ran out), delayed, reserved, buried.
local moment = exact(now())
local due = redis.call('ZCOUNT', KEYS[2], '-inf', moment)
local expired = redis.call('ZCOUNT', KEYS[3], '-inf', moment)
return {
  redis.call('LLEN', KEYS[1]) + due + expired,
  redis.call('ZCARD', KEYS[2]) - due,
  redis.call('ZCARD', KEYS[3]) - expired,
  redis.call('LLEN', KEYS[4]),
}
