"""Failed jobs: finding them wherever they are kept, and queueing them again.

The stores themselves are with their drivers, because recording a failure and removing its job is
one step of the backend.
"""
