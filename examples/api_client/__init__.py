"""A client of a rate-limited HTTP service, through the queue."""
