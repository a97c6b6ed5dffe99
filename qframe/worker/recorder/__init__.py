"""Flight recorder: what a supervisor keeps of its jobs' last seconds, for when they are killed."""
