"""`manage.py qframe`."""
