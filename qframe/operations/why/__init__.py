"""Why: in sentences, why a job does not run, or what a queue or class waits for."""
