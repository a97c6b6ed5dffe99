"""Expired facts that someone asks to have removed at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from qframe.contracts.step import Set, Step
from qframe.drivers.database.backend import DatabaseBackend
from qframe.drivers.database.settings import DatabaseSettings


@pytest.fixture(params=["sqlite", "postgres_running", "mariadb_running"])
def backend(request: pytest.FixtureRequest, file: Path) -> Iterator[DatabaseBackend]:
    if request.param == "sqlite":
        url = f"sqlite:///{file}"
    else:
        url = request.getfixturevalue(request.param).database()
    made = DatabaseBackend("here", DatabaseSettings(url=url))
    made.migrate()
    yield made
    made.close()


def test_expired_facts_under_a_prefix_are_removed_at_once(backend: DatabaseBackend) -> None:
    ends = {"a:gone": -1.0, "a:stays": 60.0, "a:for good": None, "b:gone": -1.0, "a": -1.0}
    backend._tables.facts._sweep._left = 1000  # which would remove others meanwhile
    backend.apply(*(Step(None, Set(key, "", ttl)) for key, ttl in ends.items()))
    backend.remove_expired("a:")
    facts = backend.database.schema.facts
    with sa.create_engine(backend.database.url, poolclass=sa.NullPool).connect() as raw:
        kept = set(raw.execute(sa.select(facts.c.key)).scalars())
    assert kept == {"a:stays", "a:for good", "b:gone", "a"}
