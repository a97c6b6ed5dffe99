"""Jobs with durable steps, for `test_steps`; copied into its projects."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from typing import ClassVar

from sqlalchemy import Engine, create_engine, text

from qframe import EventTimedOut, Queueable, current_job, queueable

_ledger = os.open(os.environ.get("LEDGER", os.devnull), os.O_WRONLY | os.O_APPEND)


def note(*words: object) -> None:
    os.write(_ledger, (" ".join(map(str, words)) + "\n").encode())


def engine() -> Engine:
    return create_engine(os.environ["SHOP"])


class Order(Queueable):
    """Steps, a sleep and an event, as docs/features/steps.md has them."""

    word: str
    nap: float = 0.3
    tries: ClassVar[int | None] = 1

    def charge(self) -> int:
        note("charge", self.word)
        return 7

    def handle(self) -> None:
        charge = self.step("charge", self.charge)
        self.sleep("cool off", self.nap)
        note("slept", self.word)
        try:
            event = self.wait_for_event("paid", 60)
        except EventTimedOut:
            event = "none"
        note("done", self.word, charge, event, self.attempts)


class OrderAsync(Order):
    """The same as an `async def`."""

    async def acharge(self) -> int:
        await asyncio.sleep(0)
        note("charge", self.word)
        return 7

    async def handle(self) -> None:  # type: ignore[override] # as users write it
        charge = await self.step("charge", self.acharge)
        self.sleep("cool off", self.nap)
        note("slept", self.word)
        event = self.wait_for_event("paid", 60)
        note("done", self.word, charge, event, self.attempts)


class Together(Queueable):
    """Sleeps and waits in tasks of a group."""

    tries: ClassVar[int | None] = 1

    async def nap(self) -> None:
        self.sleep("nap", 0.3)

    async def wait(self) -> None:
        note("event", self.wait_for_event("paid", 60))

    async def handle(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.wait())
            tasks.create_task(self.nap())
        note("together", self.attempts)


@queueable
def by_function(word: str) -> None:
    job = current_job()
    assert job is not None
    note("done", word, job.step("x", lambda: 3))


class Pages(Queueable):
    """Goes through pages until its worker stops."""

    give_back: ClassVar[bool] = True

    def handle(self) -> None:
        first = self.cursor("pages", 0)
        note("from", first)
        for page in range(first, 5000):
            note("page", page)
            self.checkpoint("pages", page + 1)
            time.sleep(0.01)


class Kills(Queueable):
    """Has its worker killed at one of its places: each place kills once."""

    word: str
    steps: int = 2
    within: bool = False
    tries: ClassVar[int | None] = 0

    def do(self, number: int) -> int:
        note("ran", self.word, number)
        self.die(number, "in")
        return number

    def die(self, *place: object) -> None:
        """Kill the worker once at this place."""
        name = "-".join(map(str, (self.word, *place)))
        try:
            os.close(os.open(f"{os.environ['MARKS']}/{name}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        pid = os.getppid() if os.environ.get("ISOLATED") else os.getpid()
        os.kill(pid, signal.SIGKILL)
        time.sleep(60)

    def handle(self) -> None:
        total = 0
        for number in range(self.steps):
            self.die(number, "before")
            total += self.step(f"step {number}", self.do, number)
            self.die(number, "after")
        if self.within:
            with engine().begin() as connection:
                self.step("row", self.insert, connection, within=connection)
                self.die("before commit")
            self.die("after commit")
        note("done", self.word, total)

    def insert(self, connection: object) -> None:
        connection.execute(text("INSERT INTO orders VALUES (:n)"), {"n": self.word})  # type: ignore[attr-defined] # SQLAlchemy's


class Rows(Queueable):
    """Steps within transactions of which one is rolled back, and others around them."""

    fails: bool = False
    tries: ClassVar[int | None] = 2

    def insert(self, connection: object, word: str) -> str:
        connection.execute(text("INSERT INTO orders VALUES (:n)"), {"n": word})  # type: ignore[attr-defined] # SQLAlchemy's
        return word

    def handle(self) -> None:
        shop = engine()
        with shop.begin() as connection:
            values = [self.step(n, self.insert, connection, n, within=connection) for n in "ab"]
        values.append(self.step("plain", lambda: "plain"))
        with suppress(KeyError), shop.begin() as connection:
            self.step("c", self.insert, connection, "lost", within=connection)
            raise KeyError
        with shop.begin() as connection:
            values.append(self.step("c", self.insert, connection, "c", within=connection))
        if self.fails or self.attempts == 1:
            raise ValueError
        with shop.begin() as connection:
            values.append(self.step("last", self.insert, connection, "last", within=connection))
        note("rows", *values)


class Stalls(Queueable):
    """Its worker is stopped within a step, past its lease."""

    word: str
    tries: ClassVar[int | None] = 0

    def stall(self) -> str:
        note("stalls", os.getpid(), self.attempts)
        if self.attempts == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return f"attempt {self.attempts}"

    def handle(self) -> None:
        note("value", self.step("a", self.stall))


class Six(Queueable):
    """Six steps that take a moment each, then one within a transaction if there is a shop."""

    number: int
    tries: ClassVar[int | None] = 0

    def do(self, step: int) -> int:
        note("ran", self.number, step)
        time.sleep(0.002)
        return step

    def handle(self) -> None:
        values = [self.step(f"step {step}", self.do, step) for step in range(6)]
        if values != [*range(6)]:
            note("wrong", self.number, values)
        note("done", self.number)


class Adds(Queueable):
    """A link that adds to what the one before it has returned."""

    number: int

    def handle(self) -> int:
        before = self.previous
        note("previous", self.number, before.result, before.name or "-")
        return self.number + (before.result or 0)
