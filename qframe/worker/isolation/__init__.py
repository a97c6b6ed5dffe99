"""`--isolate`: a process for each job, and what it and the worker tell each other."""
