-- Counts the messages of a queue.
--
-- KEYS  1 ready
-- Gives ready (with what is due or whose lease ran out), delayed, reserved, buried.
local delayed, reserved = KEYS[1] .. ':delayed', KEYS[1] .. ':reserved'
local due = redis.call('ZCOUNT', delayed, '-inf', exact(now()))
local expired = redis.call('ZCOUNT', reserved, '-inf', exact(now()))
return {
  redis.call('LLEN', KEYS[1]) + due + expired,
  redis.call('ZCARD', delayed) - due,
  redis.call('ZCARD', reserved) - expired,
  redis.call('LLEN', KEYS[1] .. ':buried'),
}
