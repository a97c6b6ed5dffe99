"""Orders of a shop, each a chain of jobs."""
