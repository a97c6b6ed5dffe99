"""Alerts: what is wrong is told once, until it is over, by one of all who look."""
