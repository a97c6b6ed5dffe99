"""Messages: rows of the jobs table, and the operations on them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

from qframe.contracts.backend import Standing
from qframe.contracts.browsing import Found, Page, Place, Span, position, signed
from qframe.contracts.queue import Sizes
from qframe.contracts.step import Bury, Delete, Push, Release, Renew, Reservation, Start
from qframe.drivers import process
from qframe.drivers.database.connection import Database, Session
from qframe.drivers.database.marks import Marks
from qframe.drivers.database.schema import LATEST, NEVER
from qframe.drivers.database.sql import Statement, as_bytes
from qframe.drivers.database.statements import SECOND, Statements
from qframe.drivers.database.zones import WIDTH, ZONES, Heads, moment, zone_of

_BEHIND = 1
"""Microseconds by which a released message is behind those that its step pushed first."""
_LONGEST = WIDTH // 2
"""The longest delay: a thousand years."""
_CEILING = 999_999
"""Added to microseconds before they are cut to seconds, so that the result is not too early."""

Text = str | bytes | None

_ORDER = itemgetter(4, 5, 0)
"""The order of a claim's rows: expired ones first, then by due time, then by id."""
_reservations = itertools.count()


class DatabaseJob(Reservation):
    """A row that this process holds the lease of (Laravel's DatabaseJob)."""

    __slots__ = ("row", "token")

    def __init__(
        self, queue: str, token: str, row: int, raw: Text, attempts: int, notes: Text
    ) -> None:
        kept = as_bytes(notes) if notes else b""
        super().__init__(queue, str(row), as_bytes(raw), attempts, kept)
        self.row = row
        self.token = token

    @property
    def fence(self) -> bytes:
        return f"{self.row} {self.token}".encode()

    def begin(self, start: Start, sent: float) -> None:
        """Update it after a start that was sent at `sent` by `Backend.clock`."""
        self.attempts += not self.started
        self.started, self.notes, self.lease = True, start.notes, start.lease
        self.sure_until = sent + start.lease / 3


class Messages:
    """Operations on messages, in the session's transaction.

    `retry_after` is the length of PHP's reservations, `aging` what a level of priority is worth, in
    seconds.
    """

    def __init__(self, database: Database, retry_after: float, aging: float, marks: Marks) -> None:
        self._timing = database.timing
        self._stored = database.stored
        self._database = database
        self._marks = marks
        self._sql = Statements(database, int(retry_after), marks.element)
        self._heads = Heads(database, aging)
        self._leveled = database.leveled
        self.claims_at_once = database.is_postgresql
        """Whether one statement, without a transaction around it, holds messages."""

    # -- waiting messages -------------------------------------------------------------------------

    def row(self, session: Session, push: Push) -> dict[str, Any]:
        """Return the row of a message that is pushed now."""
        message: dict[str, Any] = {
            "queue": push.queue,
            "payload": self._stored(push.raw),
            "zone": 0,
        }
        if push.priority is not None:
            message["zone"] = zone_of(push.priority)
        times = after(push.delay)
        if push.attempts or push.notes or push.buried:
            message |= {"attempts": push.attempts, "notes": self._stored(push.notes)}
        if push.buried:  # see `Zoned`
            message["zone"], times = -message["zone"], {"after": NEVER, "rounding": 0}
        return {**message, **times, **session.at}

    def insert(
        self, session: Session, rows: Sequence[dict[str, Any]], *, marked: bool = False
    ) -> None:
        """Insert messages; if `marked`, in their own transaction with the mark."""
        mark = self._marks.values(session) if marked else {}
        if len(rows) == 1 and "notes" not in rows[0]:
            statement = self._sql.insert_marked if marked else self._sql.insert
            session.change(statement, rows[0] | mark)
        elif any("notes" in row for row in rows):  # never `marked`
            for row in rows:
                statement = self._sql.insert_begun if "notes" in row else self._sql.insert
                session.change(statement, row)
        elif self._database.is_postgresql:
            columns = {f"{name}s": [row[name] for row in rows] for name in rows[0]}
            statement = self._sql.insert_all_marked if marked else self._sql.insert_all
            session.run(statement, **columns, **(mark or session.at))
        elif self._database.is_mysql:
            # Computing the times in each row makes a bulk half as slow again.
            session.run_many(self._sql.insert_timed, [*_timed(rows, session.ask_time())])
        else:
            session.run_many(self._sql.insert, rows)

    def kick(self, session: Session, queue: str) -> int:
        """Make the buried messages ready, the first buried first. Returns how many."""
        rows = session.run(self._sql.buried, queue=queue).fetchall()
        kicked = [
            {"id": row, "after": place, "rounding": 0, **session.at}
            for place, (row,) in enumerate(rows)
        ]
        if kicked:
            session.run_many(self._sql.kick, kicked)
        return len(rows)

    def wake(self, session: Session, queue: str, row: int) -> bool:
        values = {"id": row, "queue": queue, "after": 0, "rounding": 0, **session.at}
        return int(session.run(self._sql.wake, **values).rowcount) > 0

    def _first(self, session: Session, queue: str) -> int:
        row = session.run(self._sql.first_due, queue=queue).fetchone()
        return NEVER if row is None else int(row[0])

    def sizes(self, session: Session, queue: str) -> Sizes:
        counts = session.run(self._sql.sizes, queue=queue, **session.at).fetchone()
        waiting, delayed, delayed_in_zones, buried, reserved, running = map(int, counts)
        delayed += delayed_in_zones
        ready = waiting - delayed - buried + reserved - running
        return Sizes(ready, delayed, running, buried)

    def queues(self, session: Session) -> list[str]:
        return [name for (name,) in session.run(self._sql.names).fetchall()]

    def purge(self, session: Session, queue: str) -> int:
        """Delete the waiting messages. Returns how many."""
        return int(session.run(self._sql.purge, queue=queue, **session.at).rowcount)

    def search(
        self, session: Session, queue: str, text: bytes, limit: int, within: Span | None
    ) -> list[Found]:
        now = session.now
        values: dict[str, Any] = {"queue": queue, "text": text, "limit": limit}
        statement = self._sql.search
        if within is not None:
            statement = self._sql.search_within
            values |= {"low": within.first, "high": within.end}
        return [
            _found(queue, raw, due, end, row, held=bool(held), now=now)
            for row, raw, due, end, held in session.run(statement, **values).fetchall()
        ]

    def notes(self, session: Session, row: int) -> bytes:
        found = session.run(self._sql.notes, id=row).fetchone()
        return b"" if found is None else as_bytes(found[0])

    def spans(self, session: Session) -> list[Span]:
        """Return the range of ids: a message keeps its id, wherever it is."""
        first, last = session.run(self._sql.ends).fetchone()
        return [Span("", first or 0, 0 if last is None else last + 1, in_order=True)]

    def peek(self, session: Session, within: Span, limit: int) -> list[tuple[int, bytes]]:
        values = {"low": within.first, "high": within.end, "limit": limit}
        rows = session.run(self._sql.peek, **values).fetchall()
        return [(row, as_bytes(raw)) for row, raw in rows]

    def browse(self, session: Session, queue: str, place: Place, limit: int, after: str) -> Page:
        if place is Place.RUNNING:
            values = {"id": position(after), "queue": queue, "limit": limit + 1}
            rows = session.run(self._sql.reserved, **values).fetchall()
        else:
            rows = self._page(session, queue, place, limit + 1, after)
        now = session.now
        found = [
            _found(queue, raw, due, end, id_, held=bool(held), now=now)
            for id_, raw, due, end, held in rows[:limit]
        ]
        last = rows[limit - 1] if len(rows) > limit else None
        if last is None:
            return Page(found, "")
        if place is Place.RUNNING:
            return Page(found, str(last[0]))
        return Page(found, f"{self._rank(last[2], place)},{last[0]}")

    def due_by_step(
        self, session: Session, queue: str, since: float, step: float, steps: int
    ) -> list[int]:
        low, width = round(since * SECOND), round(step * SECOND)
        counts = [0] * steps
        for zone in ZONES if self._has_zones(session, queue) else (0,):
            # What is due by now is ready, and no longer delayed.
            first = zone + max(low, session.now + 1)
            values = {"first": first, "end": zone + low + steps * width}
            values |= {"low": zone + low, "width": width}
            for at, count in session.run(self._sql.due_by_step, queue=queue, **values).fetchall():
                counts[int(at)] += int(count)
        return counts

    def count_before(self, session: Session, queue: str, row: int, due: int) -> int | None:
        if self._has_zones(session, queue):
            return None
        (count,) = session.run(self._sql.before, queue=queue, due=due, id=row).fetchone()
        return int(count)

    def _page(
        self, session: Session, queue: str, place: Place, limit: int, after: str
    ) -> list[Any]:
        """Return the rows of a place behind a cursor, those of all zones in their order."""
        given, _, row = after.partition(",")
        now = session.now
        low, high = {
            Place.READY: (0, now + 1),
            Place.DELAYED: (now + 1, WIDTH),
            Place.BURIED: (NEVER, 2 * NEVER - 1),
        }[place]
        zones = ZONES if place is not Place.BURIED and self._has_zones(session, queue) else (0,)
        rows = []
        for zone in zones:
            # A cursor is a rank, so that it means the same in each zone.
            first = signed(given) - self._behind(zone, place) if given else low
            values = {
                "queue": queue,
                "limit": limit,
                "due": zone + max(low, first),
                "until": zone + high,
                "id": position(row) if first >= low else 0,
            }
            rows += session.run(self._sql.page, **values).fetchall()
        if len(zones) > 1:
            rows.sort(key=lambda row: (self._rank(row[2], place), row[0]))
        return rows[:limit]

    def _has_zones(self, session: Session, queue: str) -> bool:
        return self._heads.has_zones(session, queue)

    def _behind(self, zone: int, place: Place) -> int:
        return self._heads.behind[zone] if place is Place.READY else 0

    def _rank(self, due: int, place: Place) -> int:
        """Return the place of a row in a list: with its priority if it is ready."""
        if due >= 0:
            return due
        return moment(due) + self._behind(due - moment(due), place)

    # -- reservations -----------------------------------------------------------------------------

    def reserve(
        self, session: Session, queues: Sequence[str], limit: int, sent: float
    ) -> list[DatabaseJob]:
        """Hold messages; `sent` is the time of the call, by `Backend.clock`."""
        jobs: list[DatabaseJob] = []
        token, size = _token(), 0
        for queue in queues:
            left, room = limit - len(jobs), self._timing.most_bytes - size
            if left <= 0 or room <= 0:
                break
            claim = self._claim if self.claims_at_once else self._look_and_hold
            if queue in self._leveled:
                claim = self._claim_by_rank
            found = claim(session, queue, token, left, room)
            least = sent + self._timing.hold / 3
            for job in found:
                size += len(job.raw_body)
                job.sure_until = least
            jobs += found
        return jobs

    def _claim(
        self, session: Session, queue: str, token: str, limit: int, room: int
    ) -> list[DatabaseJob]:
        """Hold the first messages of a queue, in one statement."""
        jobs = self._claimed(session, self._sql.claim, queue, token, limit, room)
        if not jobs and self._heads.has_zones(session, queue):  # it takes none of these
            self._leveled.add(queue)
            return self._claim_by_rank(session, queue, token, limit, room)
        return jobs

    def _claimed(
        self,
        session: Session,
        statement: Statement,
        queue: str,
        token: str,
        limit: int,
        room: int,
        **among: int,
    ) -> list[DatabaseJob]:
        values = self._holding(token) | {"queue": queue, "limit": limit, "most_bytes": room}
        rows = session.run(statement, **values, **among, **session.at).fetchall()
        rows.sort(key=_ORDER)  # they have no order
        return [DatabaseJob(queue, token, *row[:4]) for row in rows]

    def _claim_by_rank(
        self, session: Session, queue: str, token: str, limit: int, room: int
    ) -> list[DatabaseJob]:
        """Hold the first messages of a queue that has some with a priority, zone by zone.

        Of each zone it takes as many as come before the first message of any other.
        """
        jobs: list[DatabaseJob] = []
        if not self.claims_at_once:  # otherwise each of its claims begins with those
            jobs = self._find_late(session, queue, token, limit, room)
            self._hold_all(session, jobs, token)
        limit, room = limit - len(jobs), room - sum(len(job.raw_body) for job in jobs)
        spent: set[int] = set()
        while limit > 0 and room > 0:
            now, heads = self._heads.read(session, queue)
            if not any(head.zone for head in heads):
                self._leveled.discard(queue)
            ready = [head for head in heads if head.moment <= now and head.zone not in spent]
            if not ready:
                if self.claims_at_once and not jobs:
                    nothing = {"low": 0, "high": -1}
                    claim = self._sql.claim_among
                    jobs = self._claimed(session, claim, queue, token, limit, room, **nothing)
                break
            zone = ready[0].zone
            behind = self._heads.behind[zone]
            high = min([now, *(head.rank - behind for head in ready[1:2])])
            among = {"low": zone, "high": zone + high}
            if self.claims_at_once:
                claim = self._sql.claim_among
                found = self._claimed(session, claim, queue, token, limit, room, **among)
            else:
                found = self._found(
                    session, self._sql.ready_among, queue, token, limit, room, **among
                )
                self._hold_all(session, found, token)
            if not found:  # others hold them just now
                spent.add(zone)
            limit, room = limit - len(found), room - sum(len(job.raw_body) for job in found)
            jobs += found
        return jobs

    def _look_and_hold(
        self, session: Session, queue: str, token: str, limit: int, room: int
    ) -> list[DatabaseJob]:
        """Find the first messages of a queue and hold them, in a transaction."""
        jobs = self._find_late(session, queue, token, limit, room)
        if jobs:
            limit, room = limit - len(jobs), room - sum(len(job.raw_body) for job in jobs)
        if limit > 0 and room > 0:
            jobs += self._found(session, self._sql.ready, queue, token, limit, room)
            if queue in self._leveled:  # there are some after all
                self._hold_all(session, jobs, token)
                return jobs + self._claim_by_rank(session, queue, token, limit, room)
        self._hold_all(session, jobs, token)
        return jobs

    def _find_late(
        self, session: Session, queue: str, token: str, limit: int, room: int
    ) -> list[DatabaseJob]:
        if self._database.is_mysql and not self._any_is_late(session, queue):
            return []
        return self._found(session, self._sql.late, queue, token, limit, room)

    def _found(
        self,
        session: Session,
        statement: Statement,
        queue: str,
        token: str,
        limit: int,
        room: int,
        **among: int,
    ) -> list[DatabaseJob]:
        """Find messages that may be held."""
        values = {"queue": queue, "limit": limit, **among, **session.at}
        rows = session.run(statement, **values).fetchall()
        if rows and rows[0][4] < 0 and not among:
            self._leveled.add(queue)
            return []
        jobs: list[DatabaseJob] = []
        for row in rows:
            jobs.append(DatabaseJob(queue, token, *row[:4]))
            room -= len(jobs[-1].raw_body)
            if room <= 0:
                break
        return jobs

    def _hold_all(self, session: Session, jobs: Sequence[DatabaseJob], token: str) -> None:
        if jobs and self._database.is_mysql:
            values = self._holding(token) | {"ids": [job.row for job in jobs]}
            session.run(self._sql.hold_all, **values, **session.at)
        elif jobs:
            at = session.at
            session.run_many(self._sql.hold, [self._held(job, at) for job in jobs])

    def _any_is_late(self, session: Session, queue: str) -> bool:
        """Whether a lease may have run out, checked without a lock.

        MariaDB may lock ready rows while it looks for expired ones, and two claims then deadlock:
        about three of two thousand jobs with eight workers.
        """
        return session.run(self._sql.any_late, queue=queue, **session.at).fetchone() is not None

    def _holding(self, token: str) -> dict[str, Any]:
        timing = self._timing
        lasts = int(timing.hold * 1_000_000)
        return {"lease": token, "lasts": lasts, "bytes_a_second": timing.bytes_a_second}

    def _held(self, job: DatabaseJob, at: dict[str, Any]) -> dict[str, Any]:
        lasts = int(self._hold(job) * 1_000_000)
        return {"id": job.row, "lease": job.token, "lasts": lasts, **at}

    def _hold(self, job: DatabaseJob) -> float:
        """Return the seconds to hold a message, longer for a large one on a slow line."""
        return self._timing.hold + len(job.raw_body) / self._timing.bytes_a_second

    def take(self, session: Session, queue: str, row: int, sent: float) -> DatabaseJob | None:
        """Hold one message that nobody holds."""
        found = session.run(self._sql.waiting, id=row, **session.at).fetchone()
        if found is None:
            return None
        *message, due = found
        job = DatabaseJob(queue, _token(), *message)
        held = self._held(job, session.at)
        if due < NEVER:  # a delayed one must not come back before it is due
            held["lasts"] = max(held["lasts"], moment(due) - session.now)
        session.run(self._sql.hold, **held)
        job.sure_until = sent + self._hold(job) / 3
        return job

    def adopt(self, session: Session, row: int, token: str) -> DatabaseJob | None:
        """Return the reservation with this fence, if it was started."""
        found = session.run(self._sql.adopted, id=row, lease=token).fetchone()
        if found is None:
            return None
        queue, *rest = found
        job = DatabaseJob(queue, token, *rest)
        job.started = True
        return job

    def is_held(self, session: Session, job: DatabaseJob) -> bool:
        """Whether the reservation is current; it stays so in this transaction."""
        return session.run(self._sql.holds, id=job.row, lease=job.token).fetchone() is not None

    def standing(self, session: Session, job: DatabaseJob) -> Standing:
        """Check a reservation without waiting for a lock."""
        values = {"id": job.row, "lease": job.token}
        if session.run(self._sql.free, **values).fetchone() is not None:
            return Standing.OURS
        row = session.run(self._sql.stands, **values).fetchone()
        if row is None:
            return Standing.GONE
        return Standing.LOCKED if row[0] else Standing.TAKEN

    # Each of these returns False if the reservation is no longer current.

    def start(self, session: Session, job: DatabaseJob, operation: Start) -> bool:
        notes, lasts = self._stored(operation.notes), int(operation.lease * 1_000_000)
        return self._settle(session, self._sql.start, job, notes=notes, lasts=lasts)

    def starting(
        self, session: Session, job: DatabaseJob, start: Start, done: DatabaseJob | None
    ) -> tuple[Statement, dict[str, Any]]:
        values = {"id": job.row, "lease": job.token, **_lasts(start.lease), **session.at}
        values["notes"] = self._stored(start.notes)
        values["done_id"], values["done_lease"] = (
            (0, "") if done is None else (done.row, done.token)
        )
        return self._sql.delete_and_start, values

    def renew(self, session: Session, job: DatabaseJob, operation: Renew) -> bool:
        return self._settle(session, self._sql.renew, job, **_lasts(operation.lease))

    def delete(self, session: Session, job: DatabaseJob, _: Delete | None = None) -> bool:
        return self._settle(session, self._sql.delete, job)

    def bury(self, session: Session, job: DatabaseJob, operation: Bury) -> bool:
        return self._free(session, job, operation.notes, 0, None, after=NEVER, rounding=0)

    def release(self, session: Session, job: DatabaseJob, operation: Release) -> bool:
        times = after(operation.delay)
        times["after"] += _BEHIND
        if operation.front and operation.delay <= 0:
            times["after"] = -1
            times["first"] = self._first(session, job.queue)
        zone = None if operation.priority is None else zone_of(operation.priority)
        uncounted = int(not operation.counted)
        return self._free(session, job, operation.notes, uncounted, zone, **times)

    def _free(
        self,
        session: Session,
        job: DatabaseJob,
        notes: bytes | None,
        uncounted: int,
        zone: int | None,
        **times: int,
    ) -> bool:
        kept = None if notes is None else self._stored(notes)
        values = {"notes": kept, "uncounted": uncounted, "first": None, "zone": zone, **times}
        return self._settle(session, self._sql.release, job, **values)

    def _settle(
        self, session: Session, statement: Statement, job: DatabaseJob, **values: object
    ) -> bool:
        return (
            session.change(statement, {"id": job.row, "lease": job.token, **values, **session.at})
            > 0
        )


def after(delay: float) -> dict[str, Any]:
    """Return the delay in microseconds, and the rounding to seconds."""
    if delay <= 0:
        return {"after": 0, "rounding": 0}
    return {"after": int(min(delay * 1_000_000, _LONGEST)), "rounding": _CEILING}


def _timed(rows: Iterable[dict[str, Any]], now: int) -> Iterator[dict[str, Any]]:
    """Return rows pushed now with their times, computed as in `Statements`."""
    for row in rows:
        due = (row["at"] or now) + row["after"]
        yield {
            "queue": row["queue"],
            "payload": row["payload"],
            "attempts": 0,
            "due": due + row["zone"],
            "available_at": min((due + row["rounding"]) // SECOND, LATEST),
            "created_at": now // SECOND,
        }


def _lasts(seconds: float) -> dict[str, int]:
    return {"lasts": int(seconds * 1_000_000)}


def _token() -> str:
    return f"{process.token()}{next(_reservations):x}"


def _second(due: int) -> float | None:
    return moment(due) / SECOND if due < NEVER else None


def _found(
    queue: str, raw: str | bytes, due: int, end: int | None, row: int, *, held: bool, now: int
) -> Found:
    """Return a row as a search shows it."""
    ends = None if end is None else end / SECOND
    return Found(queue, as_bytes(raw), _place(due, end, held, now), row, _second(due), ends)


def _place(due: int, end: int | None, held: bool, now: int) -> Place:
    """Return the place of a row; `end` is the end of its lease if it is reserved."""
    if end is not None:
        running = Place.HELD if held else Place.RUNNING
        return running if end > now else Place.READY
    if due >= NEVER:
        return Place.BURIED
    return Place.DELAYED if moment(due) > now else Place.READY
