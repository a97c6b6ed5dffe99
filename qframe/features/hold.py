"""Holds: jobs that a filter chooses are set aside, uncounted, until the hold ends.

All holds of a connection are one fact, which workers read with the pauses, about once a second. The
worker that takes a chosen job releases it with a delay, in a step that is refused if the holds have
changed meanwhile. So nothing is set aside for a hold that has ended, and `aside:...` says of which
messages the delays are to end early. Where the message cannot be woken the delay is short.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from pydantic_core import from_json, to_json

from qframe.contracts.backend import Backend, Capability
from qframe.contracts.step import Expect, Release, Set, Step, Unset
from qframe.exceptions import ConfigurationError
from qframe.features.base import End, Plan, attempts
from qframe.features.reserved import Feature, ReservedJob
from qframe.payload import envelope
from qframe.payload.text import one_line
from qframe.payload.timing import iso

LONGEST = 14 * 86400.0
"""Seconds that a hold lasts at most."""
MOST = 50
"""Holds that a connection has at most."""
_LONGEST_FILTER = 2000
_PIECE = 600.0
"""Seconds until a job that is set aside is looked at again: a wake may have been missed."""
_UNWAKEABLE = 60.0
"""As before, where a delayed message can neither be woken nor found."""
_LONGEST_HANDLE = 200
_LONGEST_UUID = 100
_MARGIN = 60.0


@dataclass(frozen=True, slots=True)
class Hold:
    """One hold of a connection."""

    id: str
    filter: str
    queues: tuple[str, ...]
    """The only queues it is about; none: all."""
    since: float
    until: float
    who: str
    why: str
    ended: bool = False
    """Whether it was ended early, and what it had set aside is being brought back."""

    @property
    def is_active(self) -> bool:
        """Whether jobs are set aside for it now, by the clock of this machine."""
        return not self.ended and time.time() < self.until

    @property
    def shown(self) -> str:
        """What a person reads who looks at a job that is set aside."""
        why = f": {self.why}" if self.why else ""
        return f"held until {iso(self.until)} UTC by {self.who}{why} (hold {self.id})"


def holds_key(connection: str) -> str:
    """Return the key of all holds of a connection."""
    return f"holds:{connection[:120]}"


def aside_key(connection: str, hold: str, job: str = "") -> str:
    """Return the key that a job is set aside; without a job, what those of a hold begin with."""
    return f"aside:{connection[:80]}:{hold}:{job}"


def name_of(uuid: str, raw: bytes) -> str:
    """Return a short name of a job: its uuid, or a digest of one that has none."""
    if 0 < len(uuid) <= _LONGEST_UUID and "\0" not in uuid:
        return uuid
    return hashlib.blake2b(raw, digest_size=12).hexdigest()


def read_holds(text: str | None) -> list[Hold]:
    """Decode the fact of all holds; what cannot be read holds nothing."""
    try:
        rows = [] if text is None else from_json(text)
        return [_hold(row) for row in rows]
    except (ValueError, TypeError, KeyError, OverflowError):
        return []


def _hold(row: dict[str, object]) -> Hold:
    words = {key: str(row[key]) for key in ("id", "filter", "who", "why")}
    since, until, queues = row["since"], row["until"], row["queues"]
    if not (isinstance(since, int | float) and isinstance(until, int | float)):
        raise TypeError("a moment is none")
    if not 0 <= since <= until <= time.time() + 2 * LONGEST:
        raise ValueError("a moment cannot be")
    if not isinstance(queues, list):
        raise TypeError("the queues are none")
    names = tuple(map(str, queues))
    return Hold(**words, queues=names, since=since, until=until, ended=row.get("ended") is True)


def change(
    backend: Backend, connection: str, changed: Callable[[list[Hold]], Iterable[Hold]]
) -> None:
    """Replace the holds of a connection, without those that are over."""
    key = holds_key(connection)
    for _ in attempts("the list of holds"):
        (before,) = backend.read(key)
        now = time.time()
        left = [*changed([each for each in read_holds(before) if each.until > now])]
        if left:
            text = to_json([_row(each) for each in left]).decode()
            after: Set | Unset = Set(key, text, max(each.until for each in left) - now + _MARGIN)
        else:
            after = Unset(key)
        if backend.apply(Step(None, Expect(key, before), after))[0].applied:
            return


def _row(hold: Hold) -> dict[str, object]:
    row: dict[str, object] = {
        name: getattr(hold, name) for name in ("id", "filter", "since", "until", "who", "why")
    }
    return {**row, "queues": [*hold.queues], **({"ended": True} if hold.ended else {})}


def checked(hold: Hold) -> Hold:
    """Return a hold that may be kept. Raises `ConfigurationError`."""
    if not hold.filter.strip():
        raise ConfigurationError("a hold needs a filter; qframe pause stops a whole queue")
    if len(hold.filter) > _LONGEST_FILTER:
        raise ConfigurationError(f"a filter has at most {_LONGEST_FILTER:,} characters")
    if not _is_text(hold.filter):
        raise ConfigurationError(f"{one_line(hold.filter, 60)!r} is no text in UTF-8")
    seconds = hold.until - hold.since
    if not 0 < seconds <= LONGEST:
        raise ConfigurationError(f"a hold lasts at most {LONGEST / 86400:g} days, and some time")
    return replace(hold, who=one_line(hold.who, 100), why=one_line(hold.why, 300))


def _is_text(text: str) -> bool:
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False


class HoldFeature(Feature):
    """Sets one held job aside; a worker adds it to the features of the job."""

    key: ClassVar[str] = "hold"

    def __init__(self, hold: Hold, text: str) -> None:
        self._hold = hold
        self._text: str | None = text
        """The fact of all holds, as this worker knows it."""

    def delay(self, backend: Backend) -> float:
        """Return the seconds until the job comes back by itself."""
        wakes = backend.capabilities & (Capability.WAKE | Capability.SEARCH)
        return max(0.0, min(self._hold.until - time.time(), _PIECE if wakes else _UNWAKEABLE))

    def end(self, job: ReservedJob, end: End, plan: Plan) -> None:
        if not end.set_aside:
            return
        backend, key = job.context.backend, holds_key(job.connection_name)
        text = self._text if self._text is not None else backend.read(key)[0]
        self._text = None  # if the step is refused
        plan.waited_for = True
        is_held = any(each.id == self._hold.id and each.is_active for each in read_holds(text))
        if not is_held:
            plan.instead = Release(0.0, front=True, counted=False)
            return
        delay = self.delay(backend)
        release = Release(delay, counted=False)
        handle = job.reservation.handle(release) if Capability.WAKE in backend.capabilities else ""
        if len(handle) > _LONGEST_HANDLE:  # Redis has the whole message in it
            handle = ""
        name = name_of(job.own_uuid, job.raw_body)
        aside = aside_key(job.connection_name, self._hold.id, name)
        where = json.dumps([job.queue, handle])
        plan.add(Expect(key, text), Set(aside, where, delay + _MARGIN))
        plan.instead = release


def place_of(text: str) -> tuple[str, str] | None:
    """Decode where a job is that was set aside: its queue, and its handle or ""."""
    try:
        queue, handle = from_json(text)
    except (ValueError, TypeError):
        return None
    return str(queue), str(handle)


def uuid_in(raw: bytes) -> str:
    """Return the name under which a message is set aside."""
    return name_of(envelope.uuid_of(raw), raw)
