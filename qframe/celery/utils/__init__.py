"""What tasks import from `celery.utils`."""
