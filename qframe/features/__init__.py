"""What a job can have besides running.

Each feature turns a job's moves into operations of a step.
"""
