"""What a shell completes, asked as a shell does."""

from __future__ import annotations

import sys

import pytest

from tests.console.conftest import Shop

TOML = """\
jobs = ["app"]
[connections.reports]
driver = "database"
url = "sqlite:///reports.sqlite3"
[connections.away]
driver = "redis"
url = "redis://127.0.0.1:1/0"
[queues.invoices]
concurrency = 2
[queues."pattern*"]
concurrency = 2
[listeners]
JobFailed = ["nowhere:hear"]
"""


def completed(shop: Shop, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    monkeypatch.setenv("_QFRAME_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(["qframe", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    said = shop.run()
    assert said.code == 0
    assert said.err == ""
    return said.out.split()


def test_commands(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    assert completed(shop, monkeypatch, "fa") == ["failed"]


def test_connections(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.write("qframe.toml", TOML)
    assert completed(shop, monkeypatch, "work", "re") == ["redis", "reports"]
    assert completed(shop, monkeypatch, "size", "--connection", "rep") == ["reports"]


def test_queues(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.queue.push_raw("{}", "imports")
    shop.write("qframe.toml", TOML)
    words = ["pause", "i"]
    assert completed(shop, monkeypatch, *words) == ["imports", "invoices"]
    assert completed(shop, monkeypatch, "work", "--queue", "high,in") == ["high,invoices"]
    words = ["size", "--connection", "away", "--queue", "i"]
    assert completed(shop, monkeypatch, *words) == ["invoices"], "it does not answer"


def test_job_classes_of_files_that_are_not_imported(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.write("qframe.toml", TOML)
    (shop.root / "app").mkdir()
    shop.write("app/__init__.py", "raise SystemExit('imported')\n")
    shop.write(
        "app/mail.py", "import qframe\nclass Sent(qframe.Queueable): ...\nclass Other: ...\n"
    )
    shop.write("app/sums.py", "from qframe import queueable\n@queueable(tries=3)\ndef add(): ...\n")
    assert completed(shop, monkeypatch, "dispatch", "") == ["app.mail.Sent", "app.sums.add"]
    shop.write("qframe.toml", "")
    assert completed(shop, monkeypatch, "dispatch", "sh") == ["shop.Order", "shop.ship"]
    assert "app" not in sys.modules


def test_a_broken_configuration_completes_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.write("qframe.toml", "nonsense = 1\n")
    assert completed(shop, monkeypatch, "size", "--connection", "") == []
