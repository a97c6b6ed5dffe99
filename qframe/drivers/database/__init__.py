"""Jobs in an SQL database: Laravel's tables, on SQLite by default."""

from qframe.drivers.database.queue import DatabaseQueue

__all__ = ["DatabaseQueue"]
