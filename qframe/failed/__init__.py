"""Failed jobs: queueing them again."""
