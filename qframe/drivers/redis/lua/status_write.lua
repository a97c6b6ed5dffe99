-- Takes a note.
--
-- KEYS  1 status
-- ARGV  1 note
-- Gives 1, or 0 where the status is further on.
return take(KEYS[1], ARGV[1])
