"""The dashboard in a Flask application: who may open it is said in Flask's request."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask, abort, redirect, request, session
from werkzeug.test import Client, TestResponse

from qframe.flask import QFrame, page
from qframe.web import Visitor
from tests.flask.conftest import ROOT
from tests.flask.jobs import look


@pytest.fixture
def client(app: Flask) -> Any:
    app.secret_key = "test"

    @app.get("/sign-in/<name>")
    def sign_in(name: str) -> str:
        session["user"] = name
        return ""

    def may() -> Any:
        if request.args.get("abort"):
            abort(404)
        user = session.get("user")
        if user is None:
            return redirect("/login")
        return Visitor(user, {"ada": "act", "bob": "read"}.get(user, "none"))

    app.register_blueprint(page(may), url_prefix="/ops/queues")
    return app.test_client()


def test_authorize_has_the_session(client: Any) -> None:
    look.dispatch().send()
    assert client.get("/ops/queues/").headers["Location"] == "/login"
    assert client.get("/ops/queues/?abort=1").status_code == 404
    client.get("/sign-in/eve")
    assert client.get("/ops/queues/").status_code == 403
    client.get("/sign-in/bob")
    listed = client.get("/ops/queues/queues")
    assert listed.status_code == 200
    assert 'href="/ops/queues/' in listed.text
    assert client.get("/ops/queues").status_code == 308
    form = {"connection": "memory", "queue": "q", "back": "/queues"}

    def pause() -> Any:
        headers = {"Sec-Fetch-Site": "same-origin"}
        return client.post("/ops/queues/actions/pause", data=form, headers=headers)

    assert pause().status_code == 403
    client.get("/sign-in/ada")
    done = pause()
    assert done.status_code == 303, done.text
    assert done.headers["Location"].startswith("/ops/queues/queues?said=paused")
    assert client.post("/ops/queues/actions/pause", data=form).status_code == 403


def test_below_another_prefix_and_with_any_letters(app: Flask, client: Any) -> None:
    def below(environ: Any, start: Any) -> Any:
        environ["SCRIPT_NAME"], environ["PATH_INFO"] = "/shop", environ["PATH_INFO"][5:]
        return app.wsgi_app(environ, start)

    cookie = client.get("/sign-in/ada").headers["Set-Cookie"].partition(";")[0]
    headers = {"Cookie": cookie}
    other = Client(below, use_cookies=False)
    said: TestResponse = other.get("/shop/ops/queues/", headers=headers)
    assert 'href="/shop/ops/queues/' in said.text
    assert other.get("/shop/ops/queues/jobs/\u00fc%20x", headers=headers).status_code == 404


def test_two_applications_show_their_own_connections(alone: None) -> None:
    pages = {}
    for name in ("shop", "blog"):
        made = Flask(name)
        there = {name: {"driver": "memory"}}
        made.config["QFRAME"] = {"default": name, "root": ROOT, "connections": there}
        QFrame(made)
        made.register_blueprint(page(lambda: "read"), url_prefix="/queues")
        with made.app_context():
            look.dispatch().send()
        pages[name] = made.test_client()
    for name in ("shop", "blog", "shop"):
        listed = pages[name].get("/queues/api/v1/queues").text
        assert [each in listed for each in ("shop", "blog")] == [name == "shop", name == "blog"]
