"""Holds, as people see them: begun, listed, ended; and which of them keep a job."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from pydantic import BaseModel

from qframe.connection import Connection
from qframe.contracts.backend import Capability
from qframe.contracts.browsing import Found, Place
from qframe.contracts.step import Release, Reservation, Step, Unset
from qframe.exceptions import ConfigurationError
from qframe.failed.filters import HELD, Filter, Filtered
from qframe.features import hold as facts
from qframe.features.hold import Hold
from qframe.payload.text import count_of, one_line, queue_name
from qframe.payload.timing import iso
from qframe.worker.holds import ReadHold

_MOST_COUNTED = 10_000
_AT_ONCE = 100
_PASSES = 3
"""How often is looked where a job is set aside in two parts: one may just be between them."""
_PAUSE = 0.5


class HoldState(BaseModel):
    """One hold of a connection."""

    id: str
    connection: str
    filter: str
    queues: list[str]
    """The only queues it is about; none: all."""
    since: str
    until: str
    seconds_left: float
    who: str
    why: str
    aside: int
    """How many jobs are set aside, at most 10,000; since a job ends otherwise, perhaps fewer."""
    ending: bool
    """Whether it was ended early, and jobs are still being brought back."""


def begin(
    connection: Connection,
    text: str,
    seconds: float,
    who: str,
    why: str = "",
    queues: Iterable[str] = (),
) -> Hold:
    """Begins to hold the jobs that a filter chooses, for `seconds`. Returns the hold.

    Raises `ConfigurationError` for a filter that no job to hold can have, and for a wrong time.
    """
    connection.need(Capability.RESERVE)
    Filter(text, HELD)
    now, names = time.time(), tuple(map(queue_name, queues))
    made = Hold(secrets.token_hex(4), text.strip(), names, now, now + seconds, who, why)
    made = facts.checked(made)

    def added(before: list[Hold]) -> list[Hold]:
        if len(before) >= facts.MOST:
            raise ConfigurationError(f"{connection.name} has {len(before)} holds already: end some")
        return [*before, made]

    facts.change(connection.backend, connection.name, added)
    return made


def end(connection: Connection, id: str) -> int | None:  # noqa: A002 (as the hold calls it)
    """Ends a hold and brings back what it has set aside. Returns how many; None: no such hold.

    Where a job comes back late it is counted, too: nothing but its turn brings it back.

    One that was ended before, by somebody who was killed, is brought to its end.
    """
    known = [each.id for each in read(connection)]
    if id not in known:
        return None

    def ended(before: list[Hold]) -> list[Hold]:
        return [replace(each, ended=each.ended or each.id == id) for each in before]

    facts.change(connection.backend, connection.name, ended)
    count = _brought_back(connection, id)

    def without(before: list[Hold]) -> list[Hold]:
        return [each for each in before if each.id != id]

    facts.change(connection.backend, connection.name, without)
    return count


def comes_back_late(connection: Connection) -> bool:
    """Whether what was set aside comes back only within a minute after the hold is ended."""
    return not connection.capabilities & (Capability.WAKE | Capability.SEARCH)


def said(connection: Connection, count: int) -> str:
    """Returns what becomes of the jobs that a hold had set aside, now that it has ended."""
    jobs = count_of(count, "job", "jobs")
    if not comes_back_late(connection):
        return f"{jobs} came back"
    return f"{jobs} {'comes' if count == 1 else 'come'} back within a minute"


def read(connection: Connection) -> list[Hold]:
    """Returns the holds of a connection that are not over."""
    if Capability.FACTS not in connection.capabilities:
        return []
    (text,) = connection.backend.read(facts.holds_key(connection.name))
    now = time.time()
    return [each for each in facts.read_holds(text) if each.until > now]


def listed(connection: Connection) -> list[HoldState]:
    """Returns the holds of a connection, the latest last. Raises `BackendUnavailable`."""
    return [state(connection, each) for each in read(connection)]


def held_by(connection: Connection, job: Filtered) -> list[HoldState]:
    """Returns the holds that keep a job from running now. Raises `BackendUnavailable`."""
    return [
        state(connection, each)
        for each in read(connection)
        if each.is_active and ReadHold(each).chooses(job)
    ]


def state(connection: Connection, hold: Hold) -> HoldState:
    """Returns a hold as people see it. Raises `BackendUnavailable`."""
    return HoldState(
        id=hold.id,
        connection=connection.name,
        filter=one_line(hold.filter, 300),
        queues=[*hold.queues],
        since=iso(hold.since),
        until=iso(hold.until),
        seconds_left=round(max(0.0, hold.until - time.time()), 1),
        who=hold.who,
        why=hold.why,
        aside=_count(connection, hold.id),
        ending=hold.ended,
    )


def _count(connection: Connection, id: str) -> int:  # noqa: A002 (as above)
    found = connection.store.items(facts.aside_key(connection.name, id))
    return sum(1 for _ in islice(found, _MOST_COUNTED))


# -- bringing back --------------------------------------------------------------------------------


def _brought_back(connection: Connection, id: str) -> int:  # noqa: A002 (as above)
    """Makes ready what a hold has set aside, if its turn does not come soon. Returns how many."""
    late, count = comes_back_late(connection), 0
    passes = 1 if late or Capability.JOINT in connection.capabilities else _PASSES
    for passed in range(passes):
        if passed:
            time.sleep(_PAUSE)
        aside = _aside(connection, id)
        woken = {each.name for each in aside} if late else _woken(connection, aside)
        is_last = passed == passes - 1
        over = [Unset(each.key) for each in aside if is_last or each.name in woken]
        for start in range(0, len(over), _AT_ONCE):
            connection.backend.apply(Step(None, *over[start : start + _AT_ONCE]))
        count += len(woken)
    return count


class _Aside(NamedTuple):
    """A job that is set aside."""

    key: str
    name: str
    queue: str
    handle: str


def _aside(connection: Connection, id: str) -> list[_Aside]:  # noqa: A002 (as above)
    prefix = facts.aside_key(connection.name, id)
    return [
        _Aside(key, key[len(prefix) :], *(facts.place_of(text) or ("", "")))
        for key, text in connection.store.items(prefix)
    ]


def _woken(connection: Connection, aside: Sequence[_Aside]) -> set[str]:
    """Makes jobs ready. Returns the names of those that were delayed."""
    backend, woken = connection.backend, set[str]()
    sought: dict[str, set[str]] = {}
    for each in aside:
        if not each.handle:
            sought.setdefault(each.queue, set()).add(each.name)
        elif backend.wake(each.queue, each.handle):
            woken.add(each.name)
    if Capability.SEARCH in connection.capabilities:
        for queue, names in sought.items():
            woken |= _released(connection, queue, names)
    return woken


def _released(connection: Connection, queue: str, names: set[str]) -> set[str]:
    """Makes the delayed jobs of a queue ready that have one of these names. Returns their names.

    A page of which some were released is read again: the next jobs have moved into it.
    """
    done, left, after = set[str](), {*names}, ""
    while left:
        page = connection.backend.browse(queue, Place.DELAYED, _AT_ONCE, after)
        found = [each for each in page.found if facts.uuid_in(each.raw_body) in left]
        released = _release(connection, found)
        done |= released
        left -= released
        if not released:
            after = page.after
            if not after:
                break
    return done


def _release(connection: Connection, found: Sequence[Found]) -> set[str]:
    """Makes delayed jobs ready. Returns the names of those that were still there."""
    taken: list[tuple[str, Reservation]] = []
    for each in found:
        reservation = connection.backend.take(each)
        if reservation is not None:
            taken.append((facts.uuid_in(each.raw_body), reservation))
    if not taken:
        return set()
    results = connection.backend.apply(*(Step(job, Release()) for _, job in taken))
    return {name for (name, _), result in zip(taken, results, strict=True) if result.applied}
