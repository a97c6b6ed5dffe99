"""What the projects of `test_exactly_once` run: rows and jobs in one transaction each.

Run as a program it adds rows, each with a job, until it is killed.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from functools import cache

from sqlalchemy import Engine, create_engine, text

from qframe import Queueable, dispatch

_ledger = os.open(os.environ.get("LEDGER", os.devnull), os.O_WRONLY | os.O_APPEND)
_MOMENT = 0.01
"""Seconds for a kill: before the job is completed, before the commit, and after it."""
_LONG = 2.5
"""Seconds, more than a lease of the tests."""


@cache
def engine() -> Engine:
    return create_engine(os.environ["SHOP"])


class Book(Queueable):
    """Adds a row, and is done with it."""

    number: int

    job_name = "booking.Book"
    tries = 0

    def handle(self) -> None:
        os.write(_ledger, f"start {self.number}\n".encode())
        with engine().begin() as connection:
            connection.execute(text("INSERT INTO orders VALUES (:name)"), {"name": self.number})
            time.sleep(_MOMENT)
            self.job.complete(within=connection)
            time.sleep(_MOMENT)
        time.sleep(_MOMENT)


class Booked(Queueable):
    """What a batch of bookings ends with: one row more."""

    job_name = "booking.Booked"
    tries = 0

    def handle(self) -> None:
        with engine().begin() as connection:
            connection.execute(text("INSERT INTO orders VALUES ('booked')"))
            self.job.complete(within=connection)


class Act(Queueable):
    """Adds a row, and is done with it, in a way of its own, at its first attempt."""

    how: str

    job_name = "booking.Act"
    tries = 3
    backoff = 0

    def handle(self) -> None:
        os.write(_ledger, f"start {self.how}\n".encode())
        how = self.how if self.attempts == 1 else ""
        with engine().connect() as connection:
            connection.execute(text("INSERT INTO orders VALUES (:name)"), {"name": self.how})
            if how == "writes long":
                time.sleep(_LONG)
            began = time.monotonic()
            self.job.complete(within=connection)
            os.write(_ledger, f"took {time.monotonic() - began}\n".encode())
            if how == "takes long":
                time.sleep(_LONG)
            if how == "dies before":
                os.kill(os.getpid(), signal.SIGKILL)
            if how != "forgets":
                connection.commit()
            if how == "dies after":
                os.kill(os.getpid(), signal.SIGKILL)
        if how == "raises after":
            raise RuntimeError("too late")


if __name__ == "__main__":
    for number in itertools.count():
        with engine().begin() as connection:
            connection.execute(text("INSERT INTO orders VALUES (:name)"), {"name": number})
            dispatch(Book(number=number)).within(connection)
