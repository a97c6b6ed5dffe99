"""`qframe jobs`: what can be dispatched."""

from __future__ import annotations

import importlib

from tests.console.conftest import Shop

MAIL = '''\
from __future__ import annotations
from datetime import date
from qframe import Queueable, queueable

class Letter(Queueable):
    """Sends a letter.

    With a stamp.
    """
    to: str
    on: date | None = None
    copies: list[int] = []
    queue = "letters"
    connection = "reports"
    tries = 5
    timeout = 12
    def handle(self) -> None: ...

class _Base(Queueable):
    shop: int

@queueable(queue="sums")
def add(a: int, b=2) -> int:
    """Adds."""
'''
TOML = """\
jobs = ["mail"]
[connections.reports]
driver = "database"
url = "sqlite:///reports.sqlite3"
"""


def test_those_of_the_configured_modules(shop: Shop) -> None:
    shop.write("qframe.toml", TOML)
    shop.write("mail.py", MAIL)
    header, *lines = shop.run("jobs").lines
    assert header.split() == ["job", "fields", "queue", "about"]
    assert [line.split()[0] for line in lines] == ["mail.Letter", "mail.add"]
    letter, add = shop.run("jobs", "--json").rows
    assert letter == {
        "job": "mail.Letter",
        "about": "Sends a letter.",
        "connection": "reports",
        "queue": "letters",
        "options": {"tries": "5", "timeout": "12"},
        "fields": [
            {"name": "to", "type": "str", "required": True, "default": ""},
            {"name": "on", "type": "datetime.date | None", "required": False, "default": "None"},
            {"name": "copies", "type": "list[int]", "required": False, "default": "[]"},
        ],
    }
    assert [(each["name"], each["type"], each["default"]) for each in add["fields"]] == [
        ("a", "int", ""),
        ("b", "Any", "2"),
    ]
    assert add["queue"] == "sums"


def test_one_in_full(shop: Shop) -> None:
    shop.write("qframe.toml", TOML)
    shop.write("mail.py", MAIL)
    assert shop.run("jobs", "Letter").lines == [
        "job         mail.Letter",
        "about       Sends a letter.",
        "queue       reports:letters",
        "tries       5",
        "timeout     12",
        "field       to: str",
        "field       on: datetime.date | None = None",
        "field       copies: list[int] = []",
    ]
    assert len(shop.run("jobs", "mail.*", "--json").rows) == 2
    assert "no job is called 'Leter'; qframe jobs lists all" in shop.run("jobs", "Leter").only()


def test_without_configuration_those_of_files_that_only_define(shop: Shop) -> None:
    shop.write("mail.py", MAIL)
    shop.write("script.py", f"{MAIL}\nprint('it runs')\n")
    shop.write(
        "broken.py", "from qframe import Queueable\nimport nowhere\nclass A(Queueable): ...\n"
    )
    shop.write("plain.py", "raise SystemExit('imported')\n")
    said = shop.run("jobs")
    assert "it runs" not in said.out
    assert [line.split()[0] for line in said.lines[1:]] == [
        "mail.Letter",
        "mail.add",
        "shop.Order",
        "shop.ship",
    ]
    broken, script = said.err.splitlines()
    assert "No module named 'nowhere'" in broken
    assert script.startswith("qframe: script: importing it would run line 26: name it under `jobs`")


def test_a_project_without_jobs(shop: Shop) -> None:
    importlib.import_module("qframe.celery.map_tasks")  # jobs of qframe's own
    (shop.root / "shop.py").unlink()
    assert shop.run("jobs").out == "no job can be dispatched\n"
    assert shop.run("jobs", "--json").rows == []
