"""What runs inside the measured processes: job modules, producers, the bare loop."""

WRITTEN = "written"
"""The file that jobs append a byte to, in the folder they run in."""
TIMES = "times"
"""The file that jobs append their times to."""
