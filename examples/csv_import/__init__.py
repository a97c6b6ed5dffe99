"""A large CSV file, imported by a batch of jobs."""
