"""`--isolate`: a process for each job, and the messages between it and the worker."""
