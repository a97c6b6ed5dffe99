"""Django's migrations of the queue's tables."""
