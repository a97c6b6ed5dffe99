"""Metrics: what is measured of jobs, minute by minute, and kept by the backend."""
