"""Messages and facts in this process's memory: the reference for all other backends."""
