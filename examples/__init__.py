"""Small, whole, runnable applications of qframe."""
