"""Messages and facts in this process's memory: the reference that other backends agree with."""
