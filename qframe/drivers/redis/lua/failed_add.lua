-- Keeps a failed job; one of the same uuid is replaced.
--
-- KEYS  1 failed   2 failed, in order
-- ARGV  1 uuid   2 record   3 when it failed
even_when_full(KEYS[2])
record(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3])
return 1
