"""Forecast: whether a queue will be behind within the coming hours, and why."""
