"""The client library of each kind of database, and what is said where it is missing."""

from __future__ import annotations

import sys

import pytest

from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.settings import DatabaseSettings
from qframe.exceptions import ConfigurationError


def driver_of(url: str) -> str:
    backend = DatabaseBackend("here", DatabaseSettings(url=url))
    return f"{backend.database.engine.name}+{backend.database.engine.driver}"


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("postgresql://db.example/x", "postgresql+psycopg"),
        ("postgresql+psycopg://db.example/x", "postgresql+psycopg"),
        ("mysql://db.example/x", "mysql+pymysql"),
        ("mariadb://db.example/x", "mariadb+pymysql"),
        ("mariadb+pymysql://db.example/x", "mariadb+pymysql"),
        ("sqlite:///x", "sqlite+pysqlite"),
    ],
)
def test_a_url_needs_to_name_no_client(url: str, driver: str) -> None:
    # SQLAlchemy calls the dialect of MariaDB mysql, whatever the URL says.
    assert driver_of(url).replace("mysql", "mariadb") == driver.replace("mysql", "mariadb")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql+psycopg2://db.example/x", "is used by psycopg, not by psycopg2"),
        ("mysql+mysqldb://db.example/x", "is used by pymysql, not by mysqldb: write mysql://"),
        ("sqlite+aiosqlite:///x", "is used by pysqlite, not by aiosqlite"),
    ],
)
def test_another_client_is_refused(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        driver_of(url)


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [
        ("postgresql://db.example/x", "psycopg", "postgres"),
        ("mariadb://db.example/x", "pymysql", "mariadb"),
    ],
)
def test_without_the_client_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, url: str, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigurationError, match=rf"{package}: pip install 'qframe\[{extra}\]'$"):
        driver_of(url)
