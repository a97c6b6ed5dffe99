"""The database: a connection for each request, and for each job."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from fastapi import Depends

FOLDER = Path(os.environ.get("UPLOADS", "uploads"))


def get_database() -> Iterator[sqlite3.Connection]:
    """Give a connection; what was done on it is committed, unless something was raised."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    # FastAPI calls what is not async in threads: one begins here, and another ends it.
    database = sqlite3.connect(FOLDER / "files.sqlite3", timeout=10, check_same_thread=False)
    try:
        with database:
            database.execute("CREATE TABLE IF NOT EXISTS files (name TEXT, sha256 TEXT)")
            yield database
    finally:
        database.close()


Database = Annotated[sqlite3.Connection, Depends(get_database, scope="function")]
"""`scope="function"`: it is committed before the answer is sent, and before jobs are queued."""
