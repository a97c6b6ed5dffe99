"""The job: what is done to an upload after the request has been answered."""

from __future__ import annotations

import hashlib

from examples.fastapi_app.database import FOLDER, Database
from qframe import queueable
from qframe.fastapi import inject


@queueable(queue="uploads", tries=3, timeout=60)
@inject
def digest(name: str, database: Database) -> None:
    """Note the SHA-256 of a file. To run twice does no harm."""
    found = hashlib.sha256((FOLDER / name).read_bytes()).hexdigest()
    database.execute("UPDATE files SET sha256 = ? WHERE name = ?", (found, name))
