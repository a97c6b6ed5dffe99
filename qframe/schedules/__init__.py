"""Schedules: jobs that are dispatched at planned times, once each, by any worker."""
