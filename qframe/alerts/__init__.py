"""Alerts: a problem is reported once, until it is over, by one of all workers."""
