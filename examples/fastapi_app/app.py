"""The application: `POST /files` answers at once; `/queues` shows what became of it."""

from __future__ import annotations

import os
import secrets
import uuid
from typing import Annotated

from fastapi import Body, Cookie, FastAPI, HTTPException

from examples.fastapi_app.database import FOLDER, Database
from examples.fastapi_app.jobs import digest
from qframe.fastapi import BackgroundJobs, lifespan, page
from qframe.web import Visitor

app = FastAPI(title="Digests", lifespan=lifespan)


@app.post("/files", status_code=202)
def upload(
    jobs: BackgroundJobs,  # first, and so queued last: after the commit
    database: Database,
    content: Annotated[bytes, Body(media_type="application/octet-stream")],
) -> dict[str, str]:
    """Keep a file, and have its digest made by a worker."""
    name = uuid.uuid4().hex
    (FOLDER / name).write_bytes(content)
    database.execute("INSERT INTO files VALUES (?, NULL)", (name,))
    jobs.add_task(digest, name)
    return {"file": name}


@app.get("/files/{name}")
def sha256(name: uuid.UUID, database: Database) -> dict[str, str]:
    """Give the digest, once there is one."""
    found = database.execute("SELECT sha256 FROM files WHERE name = ?", (name.hex,)).fetchone()
    if found is None or found[0] is None:
        raise HTTPException(404, "not yet")
    return {"sha256": found[0]}


def authorize(admin: Annotated[str, Cookie()] = "") -> Visitor:
    """Let in who has the key; a real application would depend on who has logged in."""
    key = os.environ.get("ADMIN_KEY", "")
    known = bool(key) and secrets.compare_digest(admin.encode(), key.encode())
    return Visitor("the administrator", "act" if known else "none")


app.mount("/queues", page(authorize))
