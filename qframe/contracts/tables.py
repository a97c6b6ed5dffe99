"""Migratable: a backend with tables that it creates and changes."""

from __future__ import annotations

from typing import NamedTuple


class Change(NamedTuple):
    """One change of a migration: a short description and its SQL statement."""

    what: str
    sql: str


class Migratable:
    """Creates and updates a backend's tables; one without tables changes nothing."""

    def migrate(self) -> list[Change] | None:
        """Create or update the backend's tables. Returns the changes; None if it has no tables.

        Safe to repeat, and to run in any number of processes at once.
        """
        return None

    def migration(self, *, ask: bool = True) -> list[Change] | None:  # noqa: ARG002 (the contract's)
        """Return the changes that `migrate` would make, without making them.

        `ask=False` needs no server: it returns all changes that create the tables from nothing.
        """
        return None

    def tables(self) -> list[str]:
        """List the backend's tables."""
        return []
