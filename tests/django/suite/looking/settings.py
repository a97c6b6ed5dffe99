"""The shop's settings with this app, and with the log of queries that DEBUG keeps."""

from project.settings import *  # noqa: F403 (settings)

DEBUG = True
INSTALLED_APPS.append("suite.looking")  # noqa: F405 (as above)
