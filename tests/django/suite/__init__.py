"""Tests in Django's own way: `manage.py test suite -p "*ing.py"`, in the example's project."""
