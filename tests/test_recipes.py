"""The recipes of docs/backends/migrations.md, run by Alembic and by Django."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pages import docs_page
from tests.support.projects import DatabaseProject
from tests.support.sql_server import SqlServer

_DOCS = docs_page("migrations.md")
_ENV = """
from alembic import context
from sqlalchemy import Column, Integer, MetaData, NullPool, Table, create_engine

models = MetaData()
Table("orders", models, Column("id", Integer, primary_key=True))
{recipe}
with create_engine(URL, poolclass=NullPool).connect() as connection:
    context.configure(
        connection=connection, target_metadata=models, include_object=include_object
    )
    with context.begin_transaction():
        context.run_migrations()
"""
_SETTINGS = """
import pymysql
from sqlalchemy import make_url

pymysql.install_as_MySQLdb()
url = make_url({url!r})
DATABASES = {{
    "default": {{
        "ENGINE": "django.db.backends." + {engine!r},
        "NAME": url.database,
        "USER": url.username,
        "HOST": url.host,
        "PORT": url.port,
    }}
}}
INSTALLED_APPS = ["shop"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
"""
_INITIAL = """
from django.db import migrations, models

class Migration(migrations.Migration):
    initial = True
    operations = [
        migrations.CreateModel(
            "Order", [("id", models.BigAutoField(primary_key=True, serialize=False))]
        )
    ]
"""
_MODELS = """
from django.db import models

class Order(models.Model):
    id = models.BigAutoField(primary_key=True)
"""


def recipe(file: str) -> str:
    """Give the code that the page has for a file."""
    found = re.search(rf"```python\n# {re.escape(file)}\n(.*?)```", _DOCS.read_text(), re.DOTALL)
    assert found is not None, file
    return found[1]


@pytest.fixture(params=["postgres", pytest.param("mariadb", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> SqlServer:
    found: SqlServer = request.getfixturevalue(f"{request.param}_running")
    return found


@pytest.fixture
def project(server: SqlServer, tmp_path: Path) -> Iterator[DatabaseProject]:
    with DatabaseProject(tmp_path / "app", url=server.database()) as made:
        yield made


def run(project: DatabaseProject, *words: object) -> str:
    environment = os.environ | {"PYTHONPATH": str(project.root)}
    done = subprocess.run(
        [sys.executable, "-m", *map(str, words)],
        check=False,
        cwd=project.root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(project: DatabaseProject) -> None:
    """The tables are there, whole, and jobs run."""
    assert project.qframe("migrate").out.strip() == "database: nothing to do"
    sent = project.python("from qframe import dispatch\nfrom jobs import Note\ndispatch(Note())")
    assert sent.code == 0, sent.err
    project.drain()
    assert project.done() == ["word"]


def url_of(project: DatabaseProject) -> str:
    return str(project.queue.settings.model_dump()["url"])


@pytest.mark.slow
def test_alembic(project: DatabaseProject) -> None:
    url = url_of(project)
    (project.root / "alembic.ini").write_text("[alembic]\nscript_location = migrations\n")
    told, _, _ = recipe("migrations/env.py").partition("context.configure")
    project.write("migrations/env.py", f"URL = {url!r}\n" + _ENV.format(recipe=told))
    names = 'revision = "${up_revision}"\ndown_revision = ${repr(down_revision)}\n'
    body = "import sqlalchemy as sa\nfrom alembic import op\n\ndef upgrade():\n    ${upgrades}\n"
    (project.root / "migrations" / "script.py.mako").write_text(names + body)
    first = 'revision = "0001"\ndown_revision = None\n' + recipe(
        "migrations/versions/0001_queue_tables.py"
    )
    project.write("migrations/versions/0001_queue_tables.py", first)
    run(project, "alembic", "upgrade", "head")
    check(project)
    run(project, "alembic", "revision", "--autogenerate", "-m", "mine")
    (mine,) = project.root.glob("migrations/versions/*_mine.py")
    assert "create_table('orders'" in mine.read_text()
    assert "drop" not in mine.read_text()


@pytest.mark.slow
def test_django(project: DatabaseProject, server: SqlServer) -> None:
    engine = "postgresql" if server.name == "PostgreSQL" else "mysql"
    project.write("settings.py", _SETTINGS.format(url=url_of(project), engine=engine))
    project.write("shop/__init__.py", "")
    project.write("shop/models.py", _MODELS)
    project.write("shop/migrations/__init__.py", "")
    project.write("shop/migrations/0001_initial.py", _INITIAL)
    project.write(
        "shop/migrations/0002_queue_tables.py", recipe("shop/migrations/0002_queue_tables.py")
    )
    settings = "--settings=settings"
    run(project, "django", "migrate", settings)
    check(project)
    said = run(project, "django", "makemigrations", "--check", "--dry-run", settings)
    assert "No changes detected" in said
