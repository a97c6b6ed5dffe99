"""qframe in a Django project: `INSTALLED_APPS += ["qframe.django"]`, settings under `QFRAME`."""
