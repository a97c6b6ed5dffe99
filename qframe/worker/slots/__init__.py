"""Many jobs at once in one worker: each runs in a slot, on one event loop or in a thread."""
