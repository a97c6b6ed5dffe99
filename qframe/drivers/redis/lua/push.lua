-- Stores messages, ready now or after a delay: all or none.
--
-- KEYS  1 ready  2 notify  3 delayed
-- ARGV  1 delay in seconds, 0 for none   2... messages
-- Gives how many.
push(KEYS[1], KEYS[2], KEYS[3], tonumber(ARGV[1]), ARGV, 2)
return #ARGV - 1
