"""Durable steps: what a job has done is kept as facts until its end.

`steps:UUID` names what is kept: a kind and a time for each name. `steps:UUID:NAME` has the value.
An attempt reads both once. Every write expects `steps:UUID` as it was read and is fenced by the
reservation, so a worker that has lost its lease writes nothing. `waits:UUID` says where a job is
that sleeps or waits, and `event:UUID:NAME` is an event for it. With a signing key all values are
signed for their keys; those of an encrypted job are encrypted.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import secrets
import threading
import time
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from qframe.contracts.backend import Backend, Capability, Standing
from qframe.contracts.durable import When
from qframe.contracts.failed import FailedJob
from qframe.contracts.status import State
from qframe.contracts.step import Expect, Operation, Release, Result, Set, Step, Unset
from qframe.contracts.transaction import is_async, run_in
from qframe.exceptions import (
    LOST_LEASE,
    BackendUnavailable,
    CannotDecrypt,
    EventTimedOut,
    InvalidPayload,
    InvalidSignature,
    InvalidStep,
    JobGivenBack,
    JobSuspended,
    LeaseLost,
    ResultTooLarge,
    Unsupported,
)
from qframe.features.base import End, Plan, Pushing, attempts
from qframe.features.context import Context
from qframe.features.reserved import Feature, ReservedJob
from qframe.forks import cached_property
from qframe.jobs.roundtrip import first_fault, same
from qframe.payload import encryption, envelope, secret, timing
from qframe.payload.text import one_line

KEY = "steps"
"""Payload key: steps of the job are kept, because it is retried by hand."""
MAX_VALUE = 65_536
"""The largest value of a step or event, in bytes of JSON."""
KEPT = 90 * 86400.0
"""Seconds that everything is kept after the last write, in addition to a delay."""
KEPT_FAILED = 365 * 86400.0
"""Seconds that everything is kept after a final failure, unless its record is removed before."""
STEP, WITHIN, SLEEP, WAIT, EVENT, TIMED_OUT, CURSOR = (
    "step", "step within", "sleep", "wait", "event", "timed out", "cursor",
)  # fmt: skip
"""The kinds of what is kept. A step within a transaction has a value once that is committed, and a
wait becomes an event, or has timed out.
"""
_OF_EVENT = {WAIT, EVENT, TIMED_OUT}
WITH_TIME = {SLEEP, WAIT, TIMED_OUT}
"""The kinds whose value is the time when they end (epoch seconds)."""
_EVERY = 1.0
"""Seconds between two writes of a cursor."""
_LONGEST_NAME = 100
_LONGEST_UUID = 100
_AT_ONCE = 50
"""Values read in one request."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_OF_MANY = {"chain", "batch"}
_LONGEST_OF_MANY = 29 * 86400.0
"""Seconds that a job with one of these payload keys may sleep at a time."""
_LONG = 86400.0
"""Seconds of a delay from which on everything is kept anew, so that it outlives the delay; and how
often it is kept anew by a job that goes on in smaller steps.
"""


class KeptStep(NamedTuple):
    """What is known of a kept value."""

    kind: str
    at: float
    """When it was kept (epoch seconds)."""
    hidden: bool = False
    """Whether the value must not be shown."""
    by: str = ""
    """Tells who has kept it, if an answer is lost."""


def index_key(uuid: str) -> str:
    return f"steps:{uuid}"


def value_key(uuid: str, name: str) -> str:
    return f"steps:{uuid}:{name}"


def event_key(uuid: str, name: str) -> str:
    return f"event:{uuid}:{name}"


def waits_key(uuid: str) -> str:
    return f"waits:{uuid}"


def check_name(name: object) -> str:
    """Return the name of a step or event. Raises `InvalidStep`."""
    if isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME and name.isprintable():
        return name
    shown = one_line(repr(name), 60)
    raise InvalidStep(
        f"{shown} is no name of a step: it takes 1 to {_LONGEST_NAME} printable characters"
    )


class Waiting(NamedTuple):
    """Where a job is that sleeps or waits for an event, as `waits:UUID` has it."""

    queue: str
    handle: str
    """What `Backend.wake` takes."""
    until: float
    """When the job goes on in any case (epoch seconds)."""
    event: str = ""

    @classmethod
    def read(cls, context: Context, uuid: str, text: str | None) -> Waiting | None:
        """Decode; None for None. Raises `InvalidSignature` or `InvalidPayload`."""
        if text is None:
            return None
        try:
            return cls(*from_json(context.opened(waits_key(uuid), text).text))
        except (ValueError, TypeError) as error:
            raise InvalidPayload(f"where the job {uuid} waits cannot be read: {error}") from None


def sealed_value(context: Context, key: str, value: str, *, encrypt: bool, by: str = "") -> str:
    """Return JSON as it is stored under a key: signed, and encrypted if asked for.

    `by` tells it from the same value of another writer.
    """
    if encrypt:
        message = b'{"job":%s,"data":%s}' % (to_json(key), value.encode())
        text = to_json(context.keyring.sealed(key, message)).decode()
    else:
        text = f'{{"value":{value},"by":"{by}"}}' if by else f'{{"value":{value}}}'
    return context.sealed(key, text)


def opened_value(context: Context, key: str, text: str) -> bytes:
    """Return the JSON given to `sealed_value`.

    Raises `InvalidSignature`, `CannotDecrypt`, or `InvalidPayload` for anything else.
    """
    kept = context.opened(key, text).text
    try:
        found = from_json(kept)
        if encryption.KEY in found:
            return to_json(context.keyring.opened(key, found))
        return to_json(found["value"])
    except (ValueError, TypeError, KeyError) as error:
        if isinstance(error, CannotDecrypt):
            raise
        raise InvalidPayload(f"what is kept as {key} cannot be read: {error}") from None


def read_index(context: Context, uuid: str, text: str | None) -> dict[str, KeptStep]:
    """Decode `steps:UUID`. Raises `InvalidSignature` or `InvalidPayload`."""
    if text is None:
        return {}
    try:
        found = from_json(context.opened(index_key(uuid), text).text)
        return {name: KeptStep(*fields) for name, fields in found.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidPayload(f"the kept steps of {uuid} cannot be read: {error}") from None


class JobSteps:
    """The durable steps of one attempt."""

    def __init__(self, job: ReservedJob) -> None:
        self._job = job
        self._context = job.context
        self._uuid = job.own_uuid
        self._lock = threading.RLock()
        self._index: dict[str, KeptStep] | None = None
        """None before it is read."""
        self._text: str | None = None
        """`_index` as it is stored."""
        self._values: dict[str, str] = {}
        """Texts as they are stored, by name."""
        self._with_rows: dict[str, KeptStep] = {}
        """Entries written in a transaction of the job, which may not be committed, by name."""
        self._texts_with_rows: set[str | None] = set()
        """`steps:UUID` as these transactions have written it."""
        self._used: set[str] = set()
        self._cursors: dict[str, _Values] = {}
        self._unwritten: dict[str, str] = {}
        """The JSON of checkpoints that are not kept yet, by name."""
        self._written_at = 0.0
        self._last_change = math.inf
        """When an earlier attempt last kept something (epoch seconds); inf if none has."""

    @property
    def is_stopping(self) -> bool:
        return self._job.is_stopping

    # -- the calls of a job -----------------------------------------------------------------------

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        within: object,
    ) -> Any:  # noqa: ANN401 (what the function returns)
        self._use(name, again=within is not None)
        if within is not None:
            self._check_within(name)
        values = _Values.of(function)
        call = partial(function, *arguments, **keywords)
        if is_async_function(function):
            return self._step_async(name, call, values, within)
        if within is None:
            found = self._found(name, values)
            return self._kept(name, values, call()) if found is _NOTHING else found
        if is_async(within):
            return run_in(within, partial(self._step_through, name, call, values))
        return self._step_through(name, call, values, within)

    async def _step_async(
        self, name: str, call: Callable[[], Any], values: _Values, within: object
    ) -> Any:  # noqa: ANN401 (what the function returns)
        if within is None:
            found = await asyncio.to_thread(self._found, name, values)
            if found is not _NOTHING:
                return found
            return await asyncio.to_thread(self._kept, name, values, await call())
        find, keep = partial(self._found_through, name, values), self._kept_through
        if is_async(within):
            found = await run_in(within, find)
            if found is not _NOTHING:
                return found
            return await run_in(within, partial(keep, name, values, await call()))
        found = find(within)
        return keep(name, values, await call(), within) if found is _NOTHING else found

    def _step_through(
        self, name: str, call: Callable[[], Any], values: _Values, transaction: object
    ) -> Any:  # noqa: ANN401 (what the function returns)
        found = self._found_through(name, values, transaction)
        if found is not _NOTHING:
            return found
        return self._kept_through(name, values, call(), transaction)

    def sleep(self, name: str, delay: When) -> None:
        seconds = timing.seconds_until(delay)
        until = self._moment(name, seconds, SLEEP, "sleep")
        left = until - self._now()
        if left > 0:
            raise JobSuspended(f"sleeps: {name}", left)

    def wait_for_event(self, name: str, timeout: When) -> Any:  # noqa: ANN401 (any JSON value)
        seconds = timing.seconds_until(timeout, "timeout")
        with self._lock:
            until = self._moment(name, seconds, WAIT, "wait for an event")
            while (kind := self._read()[name].kind) == WAIT:
                if self._takes_event(name):
                    continue
                left = until - self._now()
                if left > 0:
                    raise JobSuspended(f"waits for the event {name}", left, name)
                not_sent = Expect(event_key(self._uuid, name), None)
                self._keep(name, TIMED_OUT, json.dumps(until), also=(not_sent,))
            if kind == EVENT:
                return from_json(self._json(name))
        raise EventTimedOut(f"the event {name} was not sent to the job {self._uuid} in time")

    def _moment(self, name: str, seconds: float, kind: str, what: str) -> float:
        """Return when a sleep or wait ends, as its first attempt has kept it."""
        self._use(name)
        if not self._keeps:
            raise Unsupported(
                f"the connection {self._job.connection_name!r} runs jobs at once, so they cannot "
                f"{what}"
            )
        if seconds > _LONGEST_OF_MANY and not _OF_MANY.isdisjoint(self._job.payload):
            raise InvalidStep(
                f"{self._job.name} is one of a chain or a batch, which are kept for 30 days: it "
                f"can {what} for 29 days at a time"
            )
        kinds = _OF_EVENT if kind == WAIT else {kind}
        with self._lock:
            if name not in self._read():
                self._keep(name, kind, json.dumps(self._now() + seconds))
            self._check_kind(name, kinds)
            return 0.0 if self._read()[name].kind == EVENT else float(self._json(name))

    def _takes_event(self, name: str) -> bool:
        """Keep the event of a wait as its value, if it was sent."""
        key = event_key(self._uuid, name)
        (text,) = self._backend.read(key)
        if text is None:
            return False
        value = opened_value(self._context, key, text).decode()
        return self._keep(name, EVENT, value, also=(Unset(key, text),))

    def cursor(self, name: str, default: Any) -> Any:  # noqa: ANN401 (its type)
        check_name(name)
        with self._lock:
            values = _Values(_adapter(Any if default is None else type(default)), name)
            self._cursors[name] = values
            if name in self._unwritten:
                return values.decoded(self._unwritten[name].encode())
            if name not in self._read():
                return default
            self._check_kind(name, {CURSOR})
            return values.decoded(self._json(name))

    def checkpoint(self, name: str, value: object) -> None:
        check_name(name)
        with self._lock:
            if name in self._read():
                self._check_kind(name, {CURSOR})
            values = self._cursors.get(name) or _Values(_adapter(Any), name)
            self._unwritten[name] = values.encoded(value)
            if self.is_stopping or time.monotonic() - self._written_at >= _EVERY:
                self.flush()
        if self.is_stopping and self._job.gives_back:
            raise JobGivenBack("the worker stops, and the job goes on later")

    def flush(self) -> None:
        """Keep the checkpoints that are not kept yet."""
        with self._lock:
            while self._unwritten:
                name, value = next(iter(self._unwritten.items()))
                if self._keeps:
                    self._keep(name, CURSOR, value, hidden=self._is_hidden(name))
                del self._unwritten[name]
            self._written_at = time.monotonic()

    def _is_hidden(self, name: str) -> bool:
        """Whether the checkpoints of this name are, or hold, a `Secret`."""
        return name in self._cursors and self._cursors[name].is_hidden

    def _now(self) -> float:
        """Return the epoch time, which a test may have moved."""
        return time.time() + self._backend.timing.skew

    def kept(self) -> dict[str, tuple[bytes, bool]]:
        """Return what is kept, or is about to be, by name: JSON, and whether it must be hidden."""
        found = {
            name: (text.encode(), self._is_hidden(name)) for name, text in self._unwritten.items()
        }
        for name, step in self._read().items():
            if name in self._values and name not in found:
                found[name] = (self._json(name), step.hidden)
        return found

    def preset(self, name: str, value: str, *, hidden: bool) -> None:
        """Keep JSON as the value of a step that was done before; for tests."""
        self._keep(check_name(name), STEP, value, hidden=hidden)

    # -- names ------------------------------------------------------------------------------------

    @property
    def _backend(self) -> Backend:
        return self._context.backend

    @cached_property
    def _keeps(self) -> bool:
        """Whether there may be another attempt, and so something to keep."""
        return not self._context.at_once and Capability.FACTS in self._backend.capabilities

    def _use(self, name: str, *, again: bool = False) -> None:
        check_name(name)
        with self._lock:
            if name in self._used and not again:
                raise InvalidStep(f"this attempt has used the name {name!r} before: give another")
            self._used.add(name)

    def call_again(self) -> None:
        with self._lock:
            self._used.clear()

    def _check_within(self, name: str) -> None:
        if self._keeps and Capability.WITHIN not in self._backend.capabilities:
            raise Unsupported(
                f"the connection {self._job.connection_name!r} cannot keep the step {name!r} "
                "within a transaction of a database: its jobs are elsewhere"
            )

    def _check_kind(self, name: str, kinds: Collection[str]) -> None:
        kind = self._read()[name].kind
        if kind not in kinds:
            raise InvalidStep(f"{name} is a {kind} of this job: give another name")

    # -- reading ----------------------------------------------------------------------------------

    def _read(self) -> dict[str, KeptStep]:
        """Return what is kept of the job; reads it once."""
        if self._index is None:
            if not self._keeps:
                self._index = {}
                return self._index
            if not 0 < len(self._uuid) <= _LONGEST_UUID:
                raise InvalidStep(f"{self._job.name} has no uuid under which steps could be kept")
            self._job.attach_steps()
            (text,) = self._backend.read(index_key(self._uuid))
            found = self._take_in(text, self._backend)
            self._last_change = max((each.at for each in found.values()), default=math.inf)
        assert self._index is not None  # noqa: S101 (read above)
        return self._index

    def _take_in(self, text: str | None, backend: Backend) -> dict[str, KeptStep]:
        """Use what `steps:UUID` holds now, with the values that are new or changed; return it."""
        index, known = read_index(self._context, self._uuid, text), self._index or {}
        for name in known:
            if index.get(name) != known[name]:
                self._values.pop(name, None)
        missing = [name for name in index if name not in self._values]
        for begin in range(0, len(missing), _AT_ONCE):
            some = missing[begin : begin + _AT_ONCE]
            texts = backend.read(*(value_key(self._uuid, name) for name in some))
            for name, value in zip(some, texts, strict=True):
                if value is not None:
                    self._values[name] = value
                elif index[name].kind != WITHIN:
                    del index[name]  # it has expired
        self._index, self._text = index, text
        return index

    def _json(self, name: str) -> bytes:
        return opened_value(self._context, value_key(self._uuid, name), self._values[name])

    def _found(self, name: str, values: _Values) -> Any:  # noqa: ANN401 (what is kept)
        """Return the kept value of a step; `_NOTHING` if there is none."""
        with self._lock:
            if name not in self._read():
                return _NOTHING
            self._check_kind(name, {STEP, WITHIN})
            return values.decoded(self._json(name)) if name in self._values else _NOTHING

    def _found_through(self, name: str, values: _Values, transaction: object) -> Any:  # noqa: ANN401 (what is kept)
        found = self._found(name, values)
        if found is not _NOTHING or not self._keeps:
            return found
        view = self._backend.within(transaction)
        if view is self._backend:
            return _NOTHING
        (text,) = view.read(value_key(self._uuid, name))
        if text is not None:
            return values.decoded(opened_value(self._context, value_key(self._uuid, name), text))
        if not self._backend.has_one_writer and name not in self._read():
            # Not in the transaction, which would lock what other steps of the job write.
            self._keep(name, WITHIN, None)
        return _NOTHING

    # -- keeping ----------------------------------------------------------------------------------

    def _kept(self, name: str, values: _Values, value: Any) -> Any:  # noqa: ANN401 (what the function returned)
        """Keep the value of a step; returns it, or what another worker has kept before."""
        if not self._keeps:
            return value
        text = values.encoded(value)
        with self._lock:
            if self._keep(name, STEP, text, hidden=values.is_hidden):
                return value
            return self._found(name, values)

    def _kept_through(self, name: str, values: _Values, value: Any, transaction: object) -> Any:  # noqa: ANN401 (as above)
        """Keep the value of a step within a transaction of the job."""
        if not self._keeps:
            return value
        view = self._backend.within(transaction)
        if view is self._backend:
            return self._kept(name, values, value)
        text, key = values.encoded(value), value_key(self._uuid, name)
        sealed = self._sealed(name, text)
        operations: list[Operation] = [Expect(key, None), Set(key, sealed, KEPT)]
        with self._lock:
            if name not in self._read():
                operations = [*self._indexing_through(view, name, values), *operations]
            (result,) = view.apply(Step(None, *operations))
        if not result.applied:
            self._index = None  # another worker has kept something
            raise LeaseLost(f"{self._job.name} {self._uuid}: {LOST_LEASE}")
        # Only now: from here on, whoever does this step waits for the end of this transaction.
        if self._backend.standing(self._job.reservation) in {Standing.TAKEN, Standing.GONE}:
            self._job.mark_lost()
            raise LeaseLost(f"{self._job.name} {self._uuid}: {LOST_LEASE}")
        return value

    def _indexing_through(self, view: Backend, name: str, values: _Values) -> tuple[Expect, Set]:
        """Return the operations that write a name in the transaction, after those before it."""
        (holds,) = view.read(index_key(self._uuid))
        if holds != self._text and holds not in self._texts_with_rows:
            holds = self._text  # another worker has kept something: the step is refused
        index = read_index(self._context, self._uuid, holds)
        self._with_rows[name] = index[name] = self._entry(WITHIN, hidden=values.is_hidden)
        _, written = self._indexing(index)
        self._texts_with_rows.add(written.value)
        return Expect(written.key, holds), written

    def _entry(self, kind: str, *, hidden: bool) -> KeptStep:
        at = round(self._now(), 3)
        return KeptStep(kind, at, hidden or self._is_encrypted, secrets.token_hex(4))

    def _sealed(self, name: str, value: str) -> str:
        key = value_key(self._uuid, name)
        return sealed_value(self._context, key, value, encrypt=self._is_encrypted)

    def _keep(
        self,
        name: str,
        kind: str,
        value: str | None,
        *,
        also: Sequence[Operation] = (),
        hidden: bool = False,
    ) -> bool:
        """Keep JSON under a name, fenced by the reservation; None keeps only the name.

        Returns False if another worker had kept something there, or if one of `also` is refused.
        """
        before, entry = self._read().get(name), self._entry(kind, hidden=hidden)
        text = None if value is None else self._sealed(name, value)
        for _ in attempts(f"the steps of {self._uuid}"):
            index = {**self._read(), name: entry}
            expected, written = self._indexing(index)
            values = () if text is None else (Set(value_key(self._uuid, name), text, KEPT),)
            result = self._apply(expected, written, *values, *also)
            if result.applied or result.holds == written.value:  # an answer was lost before
                self._index, self._text = index, written.value
                if text is not None:
                    self._values[name] = text
                return True
            if result.key not in {"", expected.key}:
                return False
            self._take_in(result.holds, self._backend)
            if self._read().get(name) != before:
                return False
        return False

    def _indexing(self, index: Mapping[str, KeptStep]) -> tuple[Expect, Set]:
        """Return the operations that replace what `steps:UUID` holds."""
        key = index_key(self._uuid)
        text = to_json({name: [*kept] for name, kept in index.items()}).decode()
        return Expect(key, self._text), Set(key, self._context.sealed(key, text), KEPT)

    def _apply(self, *operations: Operation) -> Result:
        """Apply a step of the running job; tries again while the backend does not answer."""
        job, pause = self._job, _FIRST_PAUSE
        give_up = time.monotonic() + self._context.retry_after
        while True:
            try:
                (result,) = job.send(Step(job.reservation, *operations, *job.renewal()))
            except BackendUnavailable:
                if time.monotonic() + pause > give_up:
                    raise
                time.sleep(pause)
                pause = min(_LONGEST_PAUSE, pause * 2)
            else:
                return result

    @cached_property
    def _is_encrypted(self) -> bool:
        return encryption.is_encrypted(self._job.payload)

    # -- the end of the attempt -------------------------------------------------------------------

    def forgetting(self) -> list[Operation]:
        """Return the operations that remove everything.

        If the index cannot be read, the values stay until they expire: the job must end all the
        same.
        """
        try:
            index = self._read()
        except (InvalidPayload, InvalidSignature):
            index = {}
        return [*removing(self._uuid, index | self._with_rows)]

    def lasting(self, ttl: float) -> list[Operation]:
        """Return the operations that keep everything for `ttl` seconds, with last checkpoints.

        There are none if the index cannot be read.
        """
        try:
            if self._with_rows:
                (text,) = self._backend.read(index_key(self._uuid))
                self._take_in(text, self._backend)
            index, texts = dict(self._read()), dict(self._values)
        except (InvalidPayload, InvalidSignature):
            return []
        for name, value in self._unwritten.items():
            index[name] = self._entry(CURSOR, hidden=self._is_hidden(name))
            texts[name] = self._sealed(name, value)
        if not index:
            return []
        _, written = self._indexing(index)
        values = [Set(value_key(self._uuid, name), text, ttl) for name, text in texts.items()]
        return [Set(written.key, written.value, ttl), *values]

    def must_be_kept_anew(self, delay: float) -> bool:
        """Whether a checkpoint is not kept yet, or what is kept could expire before the job ends.

        A value expires some time after its own last write, so all are written again by the first
        attempt of each day.
        """
        is_first_of_day = self._last_change // _LONG < self._now() // _LONG
        return bool(self._unwritten) or delay > _LONG or is_first_of_day


def removing(
    uuid: str, index: Mapping[str, KeptStep], *, events: bool = True
) -> Iterator[Operation]:
    """Return the operations that remove all that is kept of a job; with events not taken yet."""
    yield Unset(index_key(uuid))
    yield Unset(waits_key(uuid))
    for name, kept in index.items():
        yield Unset(value_key(uuid, name))
        if events and kept.kind in _OF_EVENT:
            yield Unset(event_key(uuid, name))


def removed(
    context: Context, uuid: str, first: str = "", *, events: bool = True
) -> list[Operation]:
    """Return the operations that remove all that is kept of a job that does not run.

    Without `events`, those that it has not taken yet stay. `first` names a step: only that one
    goes, and what was kept after it. Raises `InvalidStep` if
    nothing is kept under this name.
    """
    (text,) = context.backend.read(index_key(uuid))
    try:
        index = read_index(context, uuid, text)
    except (InvalidPayload, InvalidSignature):
        if first:
            raise
        index = {}  # the values stay until they expire
    if not first:
        return [*removing(uuid, index, events=events)]
    if first not in index:
        names = ", ".join(index) or "nothing"
        raise InvalidStep(f"no step {first!r} is kept of {uuid}: {names}")
    key, at = index_key(uuid), [*index].index(first)
    rows = [*index.items()]
    left = {name: [*kept] for name, kept in rows[:at]}
    gone = removing(uuid, dict(rows[at:]), events=events)
    operations = [each for each in gone if each != Unset(key)]
    kept_text = context.sealed(key, to_json(left).decode())
    return [Expect(key, text), *operations, Set(key, kept_text, KEPT_FAILED)]


def have_steps(context: Context, raw: Sequence[bytes]) -> list[bool]:
    """Return which of these payloads are of jobs of which something is kept."""
    uuids = [*map(envelope.uuid_of, raw)]
    texts = context.backend.read(*map(index_key, uuids)) if uuids else []
    return [bool(uuid) and text is not None for uuid, text in zip(uuids, texts, strict=True)]


def forget_of(context: Context, record: FailedJob) -> None:
    """Remove what is kept of a failed job whose record was removed."""
    if record.history.steps:
        context.backend.apply(Step(None, *removed(context, record.uuid)))


class StepsFeature(Feature):
    """Keeps what a job has done until its end; a job has it from its first step on."""

    key: ClassVar[str] = KEY
    asks: ClassVar[bool] = True

    def kept(self, context: Context, job: Pushing) -> Sequence[str]:
        """Return the keys of its steps and events, also those that it has not taken yet."""
        uuid = envelope.uuid(job.message)
        if uuid is None or not 0 < len(uuid) <= _LONGEST_UUID:
            return ()
        index, waiting = context.backend.read(index_key(uuid), waits_key(uuid))
        names = [*read_index(context, uuid, index)]
        where = Waiting.read(context, uuid, waiting)
        events = {*names, where.event} if where is not None and where.event else names
        values = (value_key(uuid, name) for name in names)
        return [index_key(uuid), waits_key(uuid), *values, *(event_key(uuid, e) for e in events)]

    def steps_of(self, job: ReservedJob) -> JobSteps:
        return job.read_once(KEY, lambda: JobSteps(job))

    def start(self, job: ReservedJob, plan: Plan) -> None:
        if job.own_uuid and job.history.steps:
            plan.add(Unset(waits_key(job.own_uuid)))

    def end(self, job: ReservedJob, end: End, plan: Plan) -> None:
        if not 0 < len(job.own_uuid) <= _LONGEST_UUID or job.context.at_once:
            return
        steps = self.steps_of(job)
        if end.state is State.FAILED:
            plan.add(Unset(waits_key(job.own_uuid)), *steps.lasting(KEPT_FAILED))
        elif end.state.is_final:
            plan.add(*steps.forgetting())
        elif end.suspended:
            self._suspend(job, end, plan)
        elif steps.must_be_kept_anew(end.delay):
            plan.add(*steps.lasting(KEPT + end.delay))

    def _suspend(self, job: ReservedJob, end: End, plan: Plan) -> None:
        context, uuid = job.context, job.own_uuid
        if self.steps_of(job).must_be_kept_anew(end.delay):
            plan.add(*self.steps_of(job).lasting(KEPT + end.delay))
        handle = job.reservation.handle(Release(end.delay, counted=False))
        where = Waiting(job.queue, handle, time.time() + end.delay, end.event)
        text = context.sealed(waits_key(uuid), to_json([*where]).decode())
        plan.add(Set(waits_key(uuid), text, KEPT + end.delay))
        if not end.event:
            return
        key = event_key(uuid, end.event)
        (sent,) = context.backend.read(key)
        if sent is not None:
            plan.is_awaited = True
            return
        plan.add(Expect(key, None))
        plan.waited_for = True
        if not context.joint:  # the event may come between the two parts of the step
            plan.then(partial(_wake_if_sent, context.backend, key, where))


def _wake_if_sent(backend: Backend, key: str, where: Waiting) -> None:
    (sent,) = backend.read(key)
    if sent is not None:
        backend.wake(where.queue, where.handle)


# -- values ---------------------------------------------------------------------------------------


class _Values:
    """How the values of one step are written and read."""

    def __init__(self, adapter: TypeAdapter[Any], what: str) -> None:
        self._adapter = adapter
        self._what = what

    @classmethod
    def of(cls, function: Callable[..., Any]) -> _Values:
        """Return it for the return annotation of a function. Raises `InvalidStep`."""
        inner: Any = function
        while isinstance(inner, partial):
            inner = inner.func
        what = getattr(inner, "__qualname__", type(inner).__qualname__)
        if not inspect.isroutine(inner) and not inspect.isclass(inner):
            inner = type(inner).__call__
        try:
            returns = typing.get_type_hints(inner, include_extras=True).get("return", Any)
            return cls(_adapter(returns), what)
        except Exception as error:  # noqa: BLE001 (an annotation may be anything, and raise anything)
            raise InvalidStep(
                f"the return annotation of {what} cannot be used: {one_line(str(error), 200)}"
            ) from None

    @cached_property
    def is_hidden(self) -> bool:
        """Whether the values are, or hold, a `Secret`."""
        return secret.is_within(self._adapter.core_schema)

    def encoded(self, value: Any) -> str:  # noqa: ANN401 (any value)
        """Return JSON. Raises `InvalidStep` for what would not come back, or `ResultTooLarge`."""
        if inspect.iscoroutine(value):
            value.close()
            raise InvalidStep(f"{self._what} returned a coroutine: pass the async def itself")
        try:
            data = self._adapter.dump_python(
                value, mode="json", warnings=False, context=secret.TRAVELS
            )
            text = to_json(secret.revealed(value, data) if self.is_hidden else data)
            back = self._adapter.validate_json(text)
        except Exception as error:  # noqa: BLE001 (a serializer or validator may raise anything)
            raise InvalidStep(f"{self._refused(value)}: {self._fault(error)}") from None
        if not same(value, back):
            raise InvalidStep(
                f"{self._refused(value)}: it would come back changed; annotate what {self._what} "
                "returns with a type that pydantic can restore"
            )
        if len(text) > MAX_VALUE:
            raise ResultTooLarge(
                f"what {self._what} returned has {len(text):,} bytes of JSON, more than the "
                f"{MAX_VALUE:,} that a step keeps: keep it elsewhere, and return where"
            )
        return text.decode()

    def decoded(self, text: bytes) -> Any:  # noqa: ANN401 (what was kept)
        try:
            return self._adapter.validate_json(text)
        except ValidationError as error:
            raise InvalidStep(
                f"what an earlier attempt kept of {self._what} does not fit its type now: "
                f"{self._fault(error)}"
            ) from None

    def _refused(self, value: object) -> str:
        shown = "the value" if self.is_hidden else one_line(repr(value), 80)
        return f"{self._what}: {shown} cannot be kept"

    def _fault(self, error: Exception) -> str:
        if self.is_hidden:
            return type(error).__name__
        return first_fault(error)


def _adapter(kind: Any) -> TypeAdapter[Any]:  # noqa: ANN401 (any annotation)
    try:
        return _made_adapter(kind)
    except TypeError:  # not hashable
        return TypeAdapter(kind)


@lru_cache(256)
def _made_adapter(kind: Any) -> TypeAdapter[Any]:  # noqa: ANN401 (as above)
    return TypeAdapter(kind)


def is_async_function(function: Callable[..., Any]) -> bool:
    inner: Any = function
    while isinstance(inner, partial):
        inner = inner.func
    return any(map(inspect.iscoroutinefunction, (inner, type(inner).__call__)))


_NOTHING = object()
