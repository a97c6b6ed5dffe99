"""Statuses of tracked jobs in an SQL database: a row each, changed where its job is moved."""

from __future__ import annotations

import random
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, literal_column, or_, select

from qframe.contracts.status import FINAL, JobStatus, Note, State, StatusStore
from qframe.drivers.database.connection import Database
from qframe.drivers.database.session import Session
from qframe.drivers.database.sql import param

_SWEEP_EVERY = 50
_SWEPT = 1000
"""With so many new rows, so many ids are looked through for what has expired."""
_TEXTS = ("started", "ended", "progress")


class DatabaseStatusStore(StatusStore):
    """Rows of `qframe_status`."""

    def __init__(self, database: Database) -> None:
        self.database = database
        table = database.schema.status
        c = table.c
        make = database.statement
        this = c.uuid == param("uuid")
        alive = c.expires_at > param("now")
        new_life = c.life < param("life")
        further = and_(c.life == param("life"), c.final == 0, c.attempt <= param("attempt"))
        self._change = make(
            table.update()
            .values(
                queued=case((new_life, param("queued")), else_=c.queued),
                started=_or_old(new_life, "started", c.started),
                ended=param("ended"),
                progress=_or_old(new_life, "progress", c.progress),
                life=param("life"),
                attempt=param("counted"),
                state=param("state"),
                final=param("final"),
                expires_at=param("expires_at"),
            )
            .where(this, alive, or_(new_life, further))
        )
        # What nearly every note of a worker does, without a constant or a choice.
        goes_on = and_(
            this,
            alive,
            c.life == param("life"),
            c.attempt <= param("attempt"),
            c.final == literal_column("0"),
        )
        now_so = {
            "attempt": param("counted"),
            "state": param("state"),
            "final": param("final"),
            "ended": param("ended"),
            "expires_at": param("expires_at"),
        }
        self._begin = make(
            table.update()
            .values(started=param("started"), progress=param("progress"), **now_so)
            .where(goes_on)
        )
        self._end = make(
            table.update()
            .values(progress=func.coalesce(param("progress"), c.progress), **now_so)
            .where(goes_on)
        )
        self._is_there = make(select(c.uuid).where(this, alive))
        self._replace = make(table.delete().where(this))
        self._insert = make(
            table.insert().values(
                {
                    name: param(name)
                    for name in (
                        "uuid", "life", "state", "final", "queued", *_TEXTS, "expires_at",
                    )
                } | {"attempt": param("counted")}
            )
        )  # fmt: skip
        self._progress = make(
            table.update()
            .values(progress=param("progress"), expires_at=param("expires_at"))
            .where(
                this,
                alive,
                c.life == param("life"),
                c.attempt == param("attempt"),
                c.state == State.RUNNING.value,
            )
        )
        self._read = make(
            select(
                c.life, c.attempt, c.state, c.queued, *(func.coalesce(c[t], "") for t in _TEXTS)
            ).where(this, alive)
        )
        self._withdraw = make(
            table.delete().where(this, c.state == State.WAITING.value, c.attempt == 0)
        )
        self._last = make(select(func.max(c.id)))
        self._sweep = make(
            table.delete().where(
                c.id > param("after"), c.id <= param("upto"), c.expires_at <= param("now")
            )
        )
        self._inserted = 0
        self._swept: int | None = None

    def write(self, note: Note) -> bool:
        with self.database.transaction() as session:
            return self.take(session, note, self.database.now(session))

    def take(self, session: Session, note: Note, now: int) -> bool:
        """Write a note in the transaction that moves its job."""
        values: dict[str, Any] = {
            "uuid": note.uuid,
            "life": note.life,
            "state": note.state.value,
            "final": int(note.state in FINAL),
            "counted": note.counted,
            "expires_at": now + int(note.ttl * 1000),
            "started": note.started,
            "ended": note.ended,
            "progress": note.progress,
        }
        if note.attempt and (note.started is None or note.progress is not None):
            usual = self._end if note.started is None else self._begin
            if session.run(usual, now=now, attempt=note.attempt, **values).rowcount:
                return True
        values["queued"] = note.queued
        if session.run(self._is_there, uuid=note.uuid, now=now).fetchone():
            changed = session.run(self._change, now=now, attempt=note.attempt, **values)
            return bool(changed.rowcount)
        if self._inserted % _SWEEP_EVERY == 0:
            self._sweep_on(session, now)
        self._inserted += 1
        session.run(self._replace, uuid=note.uuid)
        session.run(self._insert, **values)
        return True

    def _sweep_on(self, session: Session, now: int) -> None:
        """Remove what has expired among the next rows, round and round."""
        last = session.run(self._last).fetchone()[0] or 0
        if self._swept is None:  # each process somewhere else: most of them do not live long
            self._swept = random.randrange(last + 1)  # noqa: S311 (a place to begin)
        elif self._swept >= last:
            self._swept = 0
        after, self._swept = self._swept, self._swept + _SWEPT
        session.run(self._sweep, after=after, upto=self._swept, now=now)

    def progress(self, note: Note) -> bool:
        with self.database.session() as session:
            now = self.database.now(session)
            return bool(
                session.run(
                    self._progress,
                    uuid=note.uuid,
                    now=now,
                    life=note.life,
                    attempt=note.attempt,
                    progress=note.progress,
                    expires_at=now + int(note.ttl * 1000),
                ).rowcount
            )

    def read(self, uuid: str) -> JobStatus | None:
        with self.database.session() as session:
            row = session.run(self._read, uuid=uuid, now=self.database.now(session)).fetchone()
        return None if row is None else JobStatus.of(uuid, *row)

    def withdraw(self, uuid: str) -> None:
        with self.database.session() as session:
            session.run(self._withdraw, uuid=uuid)


def _or_old(
    new_life: ColumnElement[bool], name: str, column: ColumnElement[str]
) -> ColumnElement[Any]:
    """Give the new text, or where there is none that of the same life."""
    return func.coalesce(param(name), case((new_life, None), else_=column))
