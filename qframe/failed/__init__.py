"""Failed jobs: where they are kept, finding them on all connections, and queueing them again."""
