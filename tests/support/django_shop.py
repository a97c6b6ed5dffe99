"""The example shop on Django, as its own processes: `manage.py`, a web server, workers."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.postgres_server import PostgresServer
from tests.support.server_process import free_port
from tests.support.sql_server import USER, SqlServer, wait_until

ROOT = Path(__file__).parents[2]
PROJECT = ROOT / "examples" / "django_shop"
WORK = ("manage.py", "qframe", "work", "--sleep", "0.2")
_BEGINNING = "import django; django.setup()\nfrom shop.jobs import *; from shop.tasks import *\n"
_UNTIL = """
import contextlib, io, re, sys, time
code, wanted, seconds = {}
deadline = time.monotonic() + seconds
while True:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code)
    said = printed.getvalue().strip()
    if re.search(wanted, said):
        break
    if time.monotonic() > deadline:
        sys.exit(f"waited {{seconds}} s for {{wanted}} in what {{code}} prints: {{said}}")
    time.sleep(0.05)
print(said)
"""


class DjangoShop:
    """The project, with databases and settings of its own in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        *,
        databases: Mapping[str, Any] | None = None,
        qframe: Mapping[str, Any] | None = None,
        **more: str,
    ) -> None:
        self.folder = folder
        own = {name: value for name, value in os.environ.items() if not name.startswith("QFRAME_")}
        self.environment = own | {
            "SHOP_FOLDER": str(folder),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "django")]),
            "DJANGO_SETTINGS_MODULE": "project.settings",
            **more,
        }
        if databases is not None:
            self.environment["SHOP_DATABASES"] = json.dumps(databases)
        if qframe is not None:
            self.environment["SHOP_QFRAME"] = json.dumps(qframe)

    def manage(self, *words: str, timeout: float = 100) -> subprocess.CompletedProcess[str]:
        """Run a command of Django's to its end."""
        return self._ran("manage.py", *words, timeout=timeout)

    def pytest(self, *words: str) -> str:
        """Run tests by pytest-django, all of which have to pass; gives what is printed."""
        self.environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = (
            "1"  # the others take a while to import
        )
        plugins = ("pytest_django.plugin", "qframe.testing.plugin", "no:cacheprovider")
        options = [word for plugin in plugins for word in ("-p", plugin)]
        ran = self._ran("-m", "pytest", "-q", "--ds", "project.settings", *options, *words)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def _ran(self, *words: str, timeout: float = 100) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            cwd=PROJECT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def tested(self, *words: str, timeout: float = 110) -> int:
        """Run tests of Django's, all of which have to pass; gives how many there were."""
        ran = self.manage("test", *words, "--noinput", "--pattern", "*ing.py", timeout=timeout)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return int(re.findall(r"Ran (\d+) tests", ran.stderr)[0])

    def done(self, *words: str) -> str:
        """Run one that has to do well; gives what it printed."""
        ran = self.manage(*words)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def run(self, code: str) -> str:
        """Run some lines in the project, with its jobs and tasks; gives what they print."""
        ran = self._ran("-c", _BEGINNING + code)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout.strip()

    def run_until(self, code: str, wanted: str, seconds: float) -> str:
        """Run some lines again and again until what they print has a pattern; gives that."""
        return self.run(_UNTIL.format((code, wanted, seconds)))

    @contextmanager
    def started(self, *words: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
        """Have a command run, such as a worker or a server; it is told to end in the end."""
        command = [sys.executable, *words]
        with subprocess.Popen(command, cwd=PROJECT, env=self.environment, text=True, **more) as ran:
            try:
                yield ran
            finally:
                ran.terminate()
                try:
                    ran.wait(60)
                except subprocess.TimeoutExpired:
                    ran.kill()


def databases(server: SqlServer, **more: Any) -> dict[str, Any]:
    """Give a server as Django's DATABASES."""
    by_postgres = isinstance(server, PostgresServer)
    return {
        "default": {
            "ENGINE": "django.db.backends.postgresql" if by_postgres else "mariadb_by_pymysql",
            "NAME": USER,
            "USER": USER,
            "HOST": "127.0.0.1",
            "PORT": str(server.port),
            **more,
        }
    }


def to_be_tested(server: SqlServer) -> dict[str, Any]:
    """Give a server as two of Django's DATABASES, whose test databases its user may make."""
    if isinstance(server, PostgresServer):
        server.sql(f"alter role {USER} createdb")
    named = {"default": f"{USER}_test", "other": f"{USER}_test_other"}
    return {
        alias: databases(server, TEST={"NAME": name})["default"] | {"NAME": f"{USER}_{alias}"}
        for alias, name in named.items()
    }


def in_database(**more: Any) -> dict[str, Any]:
    """Give QFRAME with its jobs in Django's database."""
    here = {"driver": "database", "django": "default", "retry_after": 3}
    return {"default": "database", "connections": {"database": here}, **more}


def ask(port: int, path: str, **form: str) -> dict[str, Any]:
    """Ask a web server for JSON."""
    data = urllib.parse.urlencode(form).encode() if form else None
    url = f"http://127.0.0.1:{port}{path}"
    with urllib.request.urlopen(url, data, timeout=60) as said:
        answer: dict[str, Any] = json.load(said)
        return answer


@contextmanager
def serving(shop: DjangoShop, kind: str) -> Iterator[int]:
    """Have the shop served by Django's own server, or by uvicorn; gives the port."""
    port = free_port()
    command = {
        "wsgi": ("manage.py", "runserver", f"127.0.0.1:{port}", "--noreload"),
        "asgi": ("-m", "uvicorn", "project.asgi:application", "--port", str(port)),
    }[kind]
    with (shop.folder / "server.log").open("w") as log, shop.started(*command, stderr=log):

        def answers() -> bool:
            with suppress(OSError):
                ask(port, "/reports/")
                return True
            return False

        wait_until(answers, "the server to answer", 40)
        yield port
