"""Watched retries: some failed jobs first, the rest at a pace, until too many fail again."""
