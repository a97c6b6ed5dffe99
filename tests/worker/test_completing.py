"""A worker with slots waits for the start of jobs that may complete within a transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import NullPool, create_engine, text

from tests.support.process import wait_for
from tests.support.projects import DatabaseProject

SALES = """
from qframe import Queueable
from sqlalchemy import create_engine
from jobs import note
from till import finishing

engine = create_engine(URL, isolation_level="REPEATABLE READ")

class Other(Queueable):
    def handle(self):
        pass

class Sale(Queueable):
    tries = 1

    def handle(self):
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT count(*) FROM jobs").scalar()
            note("ran", self.job.uuid)
            finishing.finish(self.job, connection)
            connection.commit()
"""
LATE = """
CREATE OR REPLACE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_sleep(0.1); RETURN NEW; END $$;
CREATE TRIGGER late BEFORE UPDATE ON jobs FOR EACH ROW
WHEN (NEW.attempts > OLD.attempts) EXECUTE FUNCTION late();
"""


@contextmanager
def starts_late(url: str) -> Iterator[None]:
    """Have the server take a moment to start jobs."""
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(text(LATE))
    try:
        yield
    finally:
        with engine.begin() as connection:
            connection.execute(text("DROP TRIGGER late ON jobs; DROP FUNCTION late"))


@pytest.mark.parametrize("project", ["postgresql"], indirect=True)
def test_no_handler_runs_twice_because_its_start_came_late(project: DatabaseProject) -> None:
    project.write("till/__init__.py", "")
    project.write(
        "till/finishing.py", "def finish(job, session):\n    job.complete(within=session)\n"
    )
    project.write("sales.py", SALES.replace("URL", repr(project.url)))
    project.queue.size()
    with starts_late(project.url):
        worker = project.work("--concurrency", 20)
        project.push("sales.Other")
        wait_for(lambda: "DONE" in worker.out, "the worker")
        sales = [project.push("sales.Sale") for _ in range(20)]
        wait_for(project.empty, "all sales")
        assert project.stop([worker]) == [0]
    ran = [words[1] for words in project.notes("ran")]
    assert sorted(ran) == sorted(sales)
    assert project.failed() == []
