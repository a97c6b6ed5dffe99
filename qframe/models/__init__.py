"""Models as arguments: rows of Django and SQLAlchemy that travel as their keys.

A field annotated with a Django model or a mapped class of SQLAlchemy is sent as its primary key,
and loaded when the job starts. `sessions` says which session loads those of SQLAlchemy.
"""

from __future__ import annotations

from qframe.models.keys import ModelKey
from qframe.models.opening import sessions

__all__ = ["ModelKey", "sessions"]
