"""Features of jobs besides running: each adds operations to the steps that move a job."""
