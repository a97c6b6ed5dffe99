-- Counts a member of a batch, apart from its removal.
--
-- KEYS  1 batch   2 its done   3 its failures
-- ARGV  1 the member's number   2 uuid   3 1 where it failed
-- Gives the bytes, the uuid and the queue of the job that tells of it, where there is something to
-- tell; else nothing.
even_when_full(KEYS[3]) -- what was counted is removed next
local due = settle(KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], ARGV[3] == '1')
return due and teller(KEYS[1])
