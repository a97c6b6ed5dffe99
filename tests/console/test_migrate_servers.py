"""`qframe migrate` on real servers, and what everybody says where it has not been run."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.console.conftest import Shop
from tests.support.process import Project
from tests.support.server_process import binary
from tests.support.sql_server import SqlServer


@pytest.fixture(params=["postgres_running", "mariadb_running"])
def server(request: pytest.FixtureRequest) -> SqlServer:
    found: SqlServer = request.getfixturevalue(request.param)
    return found


def configured(url: str, schema: str | None = None) -> str:
    more = f'schema = "{schema}"\n' if schema else ""
    return f'jobs = ["jobs"]\n[connections.database]\nurl = "{url}"\n{more}'


def client(url: str) -> list[str]:
    """Give the words that start the server's own client."""
    given = sa.make_url(url)
    if given.get_backend_name() == "postgresql":
        words = ["--no-psqlrc", "--single-transaction", "--set", "ON_ERROR_STOP=1", "-q"]
        words += ["-h", str(given.host), "-p", str(given.port), "-U", str(given.username)]
        return [binary("psql"), *words, str(given.database)]
    words = ["--no-defaults", "--protocol=tcp", f"--user={given.username}"]
    words += [f"--password={given.password}"] if given.password else ["--skip-password"]
    words += [f"--host={given.host}", f"--port={given.port}"]
    return [binary("mariadb"), *words, str(given.database)]


@pytest.mark.parametrize(("in_schema", "silent"), [(False, True), (True, False)])
def test_the_servers_client_runs_what_sql_prints(
    shop: Shop, server: SqlServer, *, in_schema: bool, silent: bool
) -> None:
    url = server.database()
    schema = f"{url.rpartition('/')[2]}_q" if in_schema else None
    shop.write("qframe.toml", configured(url, schema))
    if silent:  # nobody answers there, so it is everything
        shop.write("qframe.toml", configured(url.replace(str(server.port), "1"), schema))
    said = shop.run("migrate", "--sql")
    assert said.code == 0
    assert ("so this is everything" in said.out) == silent
    subprocess.run(client(url), input=said.out, text=True, check=True, timeout=60)
    shop.write("qframe.toml", configured(url, schema))
    assert shop.run("migrate").lines == ["database: nothing to do"]
    assert shop.run("migrate", "--sql").lines == ["-- database: nothing to do"]
    assert shop.run("size").code == 0


def test_before_it_was_run_everybody_says_so_in_a_line(tmp_path: Path, server: SqlServer) -> None:
    with Project(tmp_path / "app") as project:
        (project.root / "qframe.toml").write_text(configured(server.database()))
        for words in (("work", "--stop-when-empty"), ("size",), ("dispatch", "jobs.Note")):
            said = project.qframe(*words)
            assert said.code == 2, said
            assert said.one_line().endswith(": run `qframe migrate`")
            assert "has no table" in said.err
        check = project.qframe("check")
        assert check.code == 1
        assert "FAIL     database: " in check.out
        assert project.qframe("migrate").code == 0
        assert project.qframe("size").code == 0
        assert "warning  database: its tables" not in project.qframe("check").out


@pytest.mark.parametrize("schema", [None, "mine"])
def test_without_the_right_it_is_one_line(
    shop: Shop, server: SqlServer, schema: str | None
) -> None:
    url = sa.make_url(server.database())
    guest, database = f"guest_{url.database}", str(url.database)
    if server.name == "MariaDB":
        server.sql(f"create user {guest}@127.0.0.1")
        server.sql(f"grant select on {database}.* to {guest}@127.0.0.1")
    else:
        server.sql(f"create role {guest} login")
        server.sql("revoke create on schema public from public", database=database)
    theirs = url.set(username=guest, password=None)
    shop.write("qframe.toml", configured(theirs.render_as_string(), schema))
    said = shop.run("migrate")
    assert said.code == 2
    assert "does not let its user do this" in said.only()
