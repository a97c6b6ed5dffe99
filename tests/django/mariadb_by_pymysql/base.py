"""The module that Django looks for."""

import pymysql

pymysql.install_as_MySQLdb()

from django.db.backends.mysql.base import DatabaseWrapper  # noqa: E402 (needs MySQLdb)

__all__ = ["DatabaseWrapper"]
