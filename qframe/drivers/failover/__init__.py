"""The failover driver: pushes to the first of several connections that answers."""
