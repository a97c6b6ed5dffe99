"""Messages and facts in an SQL database: Laravel's tables and qframe's, on SQLite by default."""
