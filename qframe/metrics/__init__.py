"""Metrics of jobs, by the minute, kept by the backend."""
