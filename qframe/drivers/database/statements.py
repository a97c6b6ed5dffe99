"""Statements: all SQL about messages."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Column,
    ColumnElement,
    LargeBinary,
    Select,
    String,
    Table,
    Text,
    and_,
    case,
    cast,
    func,
    literal_column,
    null,
    or_,
    select,
    text,
    union,
    union_all,
)

from qframe.drivers.database.connection import Database
from qframe.drivers.database.schema import LATEST, NEVER
from qframe.drivers.database.sql import MARK, Statement, number, param, params
from qframe.drivers.database.zones import Zoned

SECOND = 1_000_000
_ENCODED = f"'^{MARK}([A-Za-z0-9+/]{{4}})*([A-Za-z0-9+/]{{2}}==|[A-Za-z0-9+/]{{3}}=)?$'"
"""The pattern of a text that encodes other bytes; any other text is plain."""


class Statements:
    """All statements of one jobs table. `retry_after` is the length of PHP's reservations.

    `mark` writes the mark of an exchange.
    """

    def __init__(self, database: Database, retry_after: int, mark: Any) -> None:  # noqa: ANN401 (Core's)
        self._make = database.statement
        self._jobs = database.schema.jobs
        self._retry_after = retry_after
        self._mark = mark
        self._now = database.clock()
        self._database = database
        c = self._c = self._jobs.c
        raw = database.as_bytes
        self._message = (c.id, raw(c.payload), c.attempts, raw(c.notes))
        self._this = c.id == param("id")
        self._of_queue = c.queue == param("queue")
        self._waits = and_(self._of_queue, c.reserved_at.is_(None))
        self._due = c.due_at
        self._zoned = Zoned(database, c.due_at)
        self._end = lease_end(self._jobs, retry_after)
        self._expired = and_(c.reserved_at.is_not(None), self._end <= self._now)
        self._push()
        self._reserve()
        self._settle()
        self._look()

    def _push(self) -> None:
        c, jobs = self._c, self._jobs
        pushed = self._times(number("after"), number("rounding"), number("at"), number("zone"))
        pushed |= {"created_at": self._now // SECOND, "attempts": literal_column("0")}
        insert = jobs.insert().inline().values(**params("queue", "payload"), **pushed)
        self.insert = self._make(insert)
        begun = {"attempts": number("attempts"), "notes": param("notes", Text)}
        self.insert_begun = self._make(insert.values(**begun))
        if self._database.is_mysql:
            self.insert_marked = self._database.block(insert, self._mark)
            timed = params("queue", "payload", "attempts", "due", "available_at", "created_at")
            self.insert_timed = self._make(jobs.insert().inline().values(**timed))
        if self._database.is_postgresql:
            whole = dict.fromkeys(("after", "rounding", "at", "zone"), BigInteger)
            kinds = {"queue": String, "payload": Text, **whole}
            lists = [param(f"{name}s", ARRAY(kind)) for name, kind in kinds.items()]
            rows = func.unnest(*lists).table_valued(*kinds, with_ordinality="place")
            row = rows.render_derived(name="pushed").c
            times = (_whole(row[name]) for name in whole)
            pushed |= self._times(*times)
            values = {"queue": row.queue, "payload": row.payload, **pushed}
            found = select(*values.values()).order_by(row.place)
            all_ = jobs.insert().inline().from_select([c[name] for name in values], found)
            self.insert_all = self._make(all_)
            mark = self._mark.returning(literal_column("1")).cte("mark")
            self.insert_marked = self._make(insert.add_cte(mark))
            self.insert_all_marked = self._make(all_.add_cte(mark))

    def _times(
        self,
        after: ColumnElement[Any],
        rounding: ColumnElement[Any],
        at: ColumnElement[Any],
        zone: ColumnElement[Any],
    ) -> dict[str, ColumnElement[Any]]:
        """Return when a message is due, exactly for qframe and in seconds for PHP, never too early.

        The delay counts from now, or from `at`, which orders the parts of a step. For qframe it is
        the moment within the `zone` of a priority.
        """
        due = (self._now if self._database.is_sqlite else func.coalesce(at, self._now)) + after
        seconds = (due + rounding) // SECOND
        available_at = case((seconds < LATEST, seconds), else_=LATEST)
        return {"due": due + zone, "available_at": available_at}

    def _leased(self, more: ColumnElement[Any] | None = None) -> dict[str, ColumnElement[Any]]:
        """Return a lease's end, and a `reserved_at` that by Laravel's rule ends no earlier."""
        end = self._now + number("lasts")
        if more is not None:
            end += more
        second = (end + (SECOND - 1)) // SECOND - self._retry_after
        return {"lease_end": end, "reserved_at": second, "leased_at": second}

    def _reserve(self) -> None:
        c, make, jobs, limit = self._c, self._make, self._jobs, number("limit")
        # Follows from the end of a lease, for the index.
        second = (self._now + (SECOND - 1)) // SECOND - self._retry_after
        late = and_(self._of_queue, c.reserved_at <= second, self._end <= self._now)
        due = and_(self._waits, self._due <= self._now)
        among = and_(self._waits, self._due >= number("low"), self._due <= number("high"))
        held = {"lease": param("lease"), "started": null()}
        size = _whole(func.octet_length(c.payload))
        # Longer for a large message on a slow line.
        by_size = held | self._leased(size * SECOND // number("bytes_a_second"))
        if self._database.is_postgresql:
            self.claim = make(self._claim(late, due, by_size))
            self.claim_among = make(self._claim(late, among, by_size, zones=True))
        else:
            first = select(*self._message, self._end).where(late).order_by(self._end, c.id)
            self.late = make(first.limit(limit).with_for_update(skip_locked=True))
            self.any_late = make(first.limit(1))
            self.ready, self.ready_among = (
                make(each.order_by(self._due, c.id).limit(limit).with_for_update(skip_locked=True))
                for each in (
                    select(*self._message, self._due).where(due),
                    self._in_range(select(*self._message, self._due).where(among)),
                )
            )
        if self._database.is_mysql:
            among = c.id.op("IN")(param("ids"))  # the client expands it to a list
            self.hold_all = make(jobs.update().values(by_size).where(among))
        self.hold = make(jobs.update().values(held | self._leased()).where(self._this))
        plain = and_(self._waits, self._due >= 0)
        self.first_due = make(select(self._due).where(plain).order_by(self._due, c.id).limit(1))

    def _in_range(self, rows: Select[Any]) -> Select[Any]:
        """Have MariaDB begin at the first `due` of a range.

        Where a table scan seems cheaper than the range, it reads all earlier rows of the queue.
        """
        if not self._database.is_mysql:
            return rows
        return rows.with_hint(self._jobs, f"FORCE INDEX (`{self._jobs.name}_due_at`)")

    def _claim(
        self,
        late: ColumnElement[bool],
        due: ColumnElement[bool],
        held: dict[str, Any],
        *,
        zones: bool = False,
    ) -> Any:  # noqa: ANN401 (Core's)
        """Hold the first messages in one statement: expired ones, then those that are due.

        Those with a priority are below zero, so before all others that are due. Where it finds one
        it takes none of these, unless that is what it is for (`zones`).

        Common table expressions find and lock the rows: with a LIMIT in a subquery, the planner may
        run it again and update more rows. Each LIMIT is the bare parameter: for any other
        expression the planner assumes a tenth of the table, and sorts it.
        """
        c, limit = self._c, number("limit")
        size = func.octet_length(c.payload).label("size")
        first = select(c.id, literal_column("0").label("kind"), self._end.label("place"), size)
        first = first.where(late).order_by(self._end, c.id).limit(limit)
        gone = first.with_for_update(skip_locked=True).cte("late")
        next_ = select(c.id, literal_column("1").label("kind"), self._due.label("place"), size)
        next_ = next_.where(due).order_by(self._due, c.id).limit(limit)
        ready = next_.with_for_update(skip_locked=True).cte("ready")
        both = union_all(select(gone), select(ready)).subquery("both")
        order = (both.c.kind, both.c.place, both.c.id)
        before = func.sum(both.c.size).over(order_by=order) - both.c.size
        rank = func.row_number().over(order_by=order)
        least = func.min(both.c.place).over(order_by=order)
        ranked = (before.label("before"), rank.label("rank"), least.label("least"))
        found = select(both.c.id, both.c.kind, both.c.place, *ranked).cte("found")
        few = and_(found.c.before < number("most_bytes"), found.c.rank <= limit)
        if not zones:
            few = and_(few, found.c.least >= 0)
        taken = and_(c.id == found.c.id, few)
        claim = self._jobs.update().values(held).where(taken)
        return claim.returning(*self._message, found.c.kind, found.c.place, _lazily())

    def _settle(self) -> None:
        c, make, jobs = self._c, self._make, self._jobs
        ours = c.reserved_at.is_not_distinct_from(c.leased_at)
        fenced = and_(self._this, c.lease == param("lease"), ours)
        self.holds = make(select(c.id).where(fenced).with_for_update())
        self.free = make(select(c.id).where(fenced).with_for_update(skip_locked=True))
        # Text, because not every database has booleans.
        stands = case((fenced, text("1")), else_=text("0"))
        self.stands = make(select(stands).where(self._this))
        self.delete = self._settled(jobs.delete().where(fenced))
        self.renew = self._settled(jobs.update().values(self._leased()).where(fenced))
        once = c.attempts + case((c.started.is_(None), text("1")), else_=text("0"))
        started = {"attempts": once, "started": text("1"), "notes": param("notes")}
        self.start = self._settled(jobs.update().values(started | self._leased()).where(fenced))
        if self._database.is_postgresql:
            self.delete_and_start = make(self._delete_and_start(ours, started | self._leased()))
        counted = c.attempts - case((c.started.is_(None), 0), else_=number("uncounted"))
        notes = func.coalesce(param("notes", Text), c.notes)
        freed = {"reserved_at": null(), "leased_at": null()}
        released = {"attempts": counted, "notes": notes, "lease": null(), **freed}
        after = (number("after"), number("rounding"), number("at"))
        zone = func.coalesce(number("zone"), self._zoned.zone)
        times = self._times(*after, zone)
        first = {
            "due": case(
                (number("after") >= NEVER, times["due"] - 2 * zone),  # buried, see `Zoned`
                # Before the first message of its level, if that is ready.
                (and_(number("after") < 0, zone < 0), zone + 1),
                (number("first") < self._now, number("first") - 1),
                else_=times["due"],
            )
        }
        self.release = make(jobs.update().values(released | times | first).where(fenced))
        # A kicked message keeps its fence: its reservation may still be settled.
        kicked = self._times(*after, self._zoned.zone_aside)
        self.kick = make(jobs.update().values(kicked).where(self._this))
        delayed = and_(self._this, self._waits, self._zoned.moment > self._now, self._due < NEVER)
        woken = self._times(*after, self._zoned.zone)
        self.wake = make(jobs.update().values(woken).where(delayed))
        self.adopted = make(select(c.queue, *self._message).where(fenced, c.started == 1))

    def _delete_and_start(self, ours: ColumnElement[bool], started: dict[str, Any]) -> Any:  # noqa: ANN401 (Core's)
        c, jobs = self._c, self._jobs
        done = and_(c.id == number("done_id"), c.lease == param("done_lease"), ours)
        this = and_(c.id == number("id"), c.lease == param("lease"), ours)
        gone = jobs.delete().where(done).returning(c.id).cte("gone")
        begun = jobs.update().values(started).where(this).returning(c.id).cte("begun")
        found = [select(func.count()).select_from(each).scalar_subquery() for each in (gone, begun)]
        return select(*found, _lazily())

    def _settled(self, element: Any) -> Statement:  # noqa: ANN401 (Core's)
        """Make a statement that may be the whole transaction."""
        if self._database.is_postgresql:
            element = element.returning(_lazily())
        return self._make(element)

    def _look(self) -> None:
        c, make, now = self._c, self._make, self._now
        reserved = and_(self._of_queue, c.reserved_at.is_not(None))
        waits, running = (select(func.count()).where(each) for each in (self._waits, reserved))
        # One statement, so that a moving message counts once; each count is a range of an index,
        # which takes a third of the time of counting all rows by their state.
        counts = (
            waits,
            waits.where(self._due > now, self._due < NEVER),
            waits.where(self._due < 0, self._zoned.moment > now),
            waits.where(self._due >= NEVER),
            running,
            running.where(self._end > now),
        )
        self.sizes = make(select(*(each.scalar_subquery() for each in counts)))
        self.names = make(self._names())
        waiting = and_(c.reserved_at.is_(None), or_(c.due.is_(None), c.due < NEVER))
        gone = or_(waiting, self._expired)
        self.purge = make(self._jobs.delete().where(self._of_queue, gone))
        aside = select(c.id).where(self._waits, self._due >= NEVER).order_by(self._due, c.id)
        self.buried = make(aside.with_for_update(skip_locked=True))
        end = case((c.reserved_at.is_not(None), self._end))
        held = case((and_(c.reserved_at == c.leased_at, c.started.is_(None)), 1), else_=0)
        found = select(c.id, self._message[1], self._due, end, held)
        found = found.where(self._of_queue, self._contains()).order_by(c.id)
        self.search = make(found.limit(number("limit")))
        among_ids = and_(c.id >= number("low"), c.id < number("high"))
        self.search_within = make(found.where(among_ids).limit(number("limit")))
        self.notes = make(select(self._message[3]).where(self._this))
        ends = [select(c.id).order_by(each).limit(1) for each in (c.id, c.id.desc())]
        self.ends = make(select(*(each.scalar_subquery() for each in ends)))
        some = select(c.id, self._message[1]).where(among_ids).order_by(c.id)
        self.peek = make(some.limit(number("limit")))
        which = select(c.id, self._message[1], self._due, end, held)
        behind = or_(
            self._due > number("due"), and_(self._due == number("due"), c.id > number("id"))
        )
        among = and_(self._waits, self._due >= number("due"), self._due < number("until"), behind)
        page = self._in_range(which.where(among)).order_by(self._due, c.id)
        self.page = make(page.limit(number("limit")))
        is_before = or_(
            self._due < number("due"), and_(self._due == number("due"), c.id < number("id"))
        )
        first = and_(self._waits, self._due >= 0, self._due <= number("due"), is_before)
        self.before = make(self._in_range(select(func.count()).where(first)))
        divided = "DIV" if self._database.is_mysql else "/"
        at = (self._due - number("low")).op(divided, precedence=8)(number("width"))
        soon = and_(self._waits, self._due >= number("first"), self._due < number("end"))
        counted = self._in_range(select(at.label("step"), func.count()).where(soon))
        self.due_by_step = make(counted.group_by(text("step")))
        others = which.where(reserved, c.id > number("id")).order_by(c.id)
        self.reserved = make(others.limit(number("limit")))
        free = or_(c.reserved_at.is_(None), self._expired)
        found = select(*self._message, self._due).where(self._this, free)
        self.waiting = make(found.with_for_update())

    def _names(self) -> Any:  # noqa: ANN401 (Core's)
        """List the queues that hold messages, jumping from each to the next in an index.

        MariaDB does so by itself for DISTINCT.
        """
        c = self._c
        if self._database.is_mysql:
            return select(c.queue).distinct().order_by(c.queue)
        each = []
        kinds = {"waiting": c.reserved_at.is_(None), "held": c.reserved_at.is_not(None)}
        for name, fits in kinds.items():
            first = select(func.min(c.queue).label("queue")).where(fits).cte(name, recursive=True)
            following = select(func.min(c.queue)).where(fits, c.queue > first.c.queue)
            more = select(following.scalar_subquery()).where(first.c.queue.is_not(None))
            both = first.union_all(more)
            each.append(select(both.c.queue).where(both.c.queue.is_not(None)))
        found = union(*each).subquery("named")
        return select(found.c.queue).order_by(found.c.queue)

    def _contains(self) -> ColumnElement[bool]:
        payload, wanted = self._c.payload, param("text")
        plain: ColumnElement[bytes] = cast(payload, LargeBinary)
        if self._database.is_sqlite:
            return func.instr(plain, wanted) > 0
        encoded = func.substr(payload, len(MARK) + 1)
        if self._database.is_postgresql:
            plain = func.convert_to(payload, text("'UTF8'"))
            is_encoded = payload.op("~")(literal_column(_ENCODED))
            raw = case((is_encoded, func.decode(encoded, text("'base64'"))), else_=plain)
            return func.pg_catalog.position(raw, cast(wanted, LargeBinary)) > 0
        decoded = case((func.left(payload, len(MARK)) == MARK, func.from_base64(encoded)))
        return func.instr(func.coalesce(decoded, plain), wanted) > 0


def lease_end(jobs: Table, retry_after: int) -> ColumnElement[Any]:
    """Return when a row's reservation ends: with qframe's lease, or PHP's `retry_after`."""
    by_php = _microseconds(jobs.c.reserved_at) + retry_after * SECOND
    return case((jobs.c.reserved_at == jobs.c.leased_at, jobs.c.lease_end), else_=by_php)


def _microseconds(seconds: Column[Any]) -> ColumnElement[Any]:
    return cast(seconds, BigInteger) * SECOND


def _lazily() -> ColumnElement[Any]:
    """Set, within a statement of PostgreSQL, whether its commit waits for the disk."""
    here = func.current_setting("synchronous_commit")
    return func.set_config("synchronous_commit", func.coalesce(param("commit"), here), text("true"))


def _whole(value: ColumnElement[Any]) -> ColumnElement[Any]:
    return cast(value, BigInteger)
