"""The running Python's standard library, indexed through the queue."""
