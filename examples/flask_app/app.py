"""The application: `POST /texts` answers at once; `/queues` shows what became of it."""

from __future__ import annotations

import os
import secrets
import uuid
from pathlib import Path

from flask import Flask, Response, abort, current_app, jsonify, request, session

from examples.flask_app.jobs import count_words
from qframe.flask import QFrame, page
from qframe.web import Visitor

queue = QFrame()


def create_app() -> Flask:
    """Make the application; a worker makes it as well."""
    app = Flask(__name__)
    app.secret_key = os.environ.get("SECRET_KEY") or secrets.token_hex()
    app.config["ADMIN_KEY"] = os.environ.get("ADMIN_KEY", "")
    app.config["TEXTS"] = Path(os.environ.get("TEXTS", "texts")).resolve()
    app.config["QFRAME"] = {"jobs": ["examples.flask_app.jobs"]}
    queue.init_app(app)
    app.add_url_rule("/texts", view_func=count, methods=["POST"])
    app.add_url_rule("/texts/<uuid:name>", view_func=counts)
    app.add_url_rule("/sign-in", view_func=sign_in, methods=["POST"])
    app.register_blueprint(page(authorize), url_prefix="/queues")
    return app


def count() -> tuple[Response, int]:
    """Have the words of a text counted by a worker."""
    folder: Path = current_app.config["TEXTS"]
    folder.mkdir(parents=True, exist_ok=True)
    name = uuid.uuid4()
    (folder / f"{name}.txt").write_text(request.get_data(as_text=True))
    job = count_words.dispatch(str(name)).send()  # raises if it cannot be queued
    return jsonify(text=name, job=job), 202


def counts(name: uuid.UUID) -> Response:
    """Give the counts, once there are any."""
    file: Path = current_app.config["TEXTS"] / f"{name}.counts"
    if not file.exists():
        abort(404, "not yet")
    return Response(file.read_text(), content_type="text/plain; charset=utf-8")


def sign_in() -> tuple[str, int]:
    """Sign in with the key; a real application would have users."""
    key = current_app.config["ADMIN_KEY"]
    if not key or not secrets.compare_digest(request.form.get("key", "").encode(), key.encode()):
        abort(403)
    session["name"] = "the administrator"
    return "", 204


def authorize() -> Visitor:
    """Let in who has signed in."""
    name = session.get("name", "")
    return Visitor(name, "act" if name else "none")
