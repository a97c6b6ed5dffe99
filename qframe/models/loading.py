"""Loads the rows of jobs before their code is called, which has them in place of the keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NoReturn

from qframe.exceptions import DontHandle, ModelMissing
from qframe.hooks import Awaits, Hooks
from qframe.models import kinds
from qframe.models.keys import ModelKey, rows_in, with_rows
from qframe.models.opening import opening

_Found = dict[tuple[type, str], dict[Any, Any]]


class WantedRows:
    """The rows that jobs of one class have keys of: one query for each model and database."""

    def __init__(self, jobs: Iterable[Any], *, may_be_gone: bool = False) -> None:
        self._jobs = [*jobs]
        self._may_be_gone = may_be_gone
        """Whether a job keeps the key of a row that is gone, as before a hook."""
        self._fields = [_keys_in(job) for job in self._jobs]
        self._keys: dict[tuple[type, str], dict[Any, None]] = {}
        self._found: _Found = {}
        for fields in self._fields:
            for row in rows_in([*fields.values()]):
                if isinstance(row, ModelKey):
                    self._keys.setdefault((row.model, row.using), {})[row.pk] = None
        self.need_session = any(kinds.needs_session(model) for model, _ in self._keys)
        self.need_no_session = any(not kinds.needs_session(model) for model, _ in self._keys)

    def load(self) -> None:
        """Load those that need no session, in this thread."""
        self._load(lambda using: using, needs_session=False)

    def load_with(self, session: Any) -> None:  # noqa: ANN401 (a session)
        """Load those that need a session."""
        self._load(lambda _: session, needs_session=True)

    def _load(self, where: Callable[[str], Any], *, needs_session: bool) -> None:
        for (model, using), pks in self._keys.items():
            if kinds.needs_session(model) is needs_session:
                rows = kinds.of(model).rows(model, [*pks], where(using))
                self._found[model, using] = rows

    def put(self) -> None:
        """Give the rows to the jobs.

        Raises what the job's option `missing` says if one is gone: `DontHandle`, `ModelMissing`.
        """
        for job, fields in zip(self._jobs, self._fields, strict=True):
            with_loaded = {name: with_rows(each, self._row) for name, each in fields.items()}
            for name, value in with_loaded.items():
                object.__setattr__(job, name, value)  # also of a frozen job
            if self.need_session:  # it may be closed before a hook is called
                object.__setattr__(job, "_keys", fields)

    def _row(self, key: ModelKey) -> Any:  # noqa: ANN401 (a row)
        row = self._found.get((key.model, key.using), {}).get(key.pk)
        if row is None:
            if self._may_be_gone:
                return key
            self._raise_gone(key)
        return row

    def _raise_gone(self, key: ModelKey) -> NoReturn:
        rule = type(self._jobs[0]).missing
        if rule == "skip":
            raise DontHandle(f"{key} is gone")
        raise ModelMissing(
            f"{key} is gone, or was not committed yet: dispatch with after_commit(...)",
            is_retried=rule == "retry",
        )


def _keys_in(job: Any) -> dict[str, Any]:  # noqa: ANN401 (a job)
    """Return the fields of a job that hold models, with keys, if it has not its rows yet."""
    if job._keys is not None:  # noqa: SLF001 (its own)
        kept: dict[str, Any] = job._keys  # noqa: SLF001 (as above)
        return kept
    return {name: getattr(job, name) for name in type(job).model_fields}


def call(
    wanted: WantedRows,
    hooks: Hooks,
    act: Callable[[], Any],
    awaits: Awaits | None,
    finish: Callable[[Coroutine[Any, Any, Any]], Any],
    *,
    stays: bool,
    on_loop: bool,
) -> Any:  # noqa: ANN401 (what `act` gives)
    """Load the rows in this thread, and call `act`, or await `awaits`, which does the same.

    `finish` runs a coroutine from this thread. `stays`: the session is open during `act`.
    `on_loop`: an event loop runs on this thread.
    """
    if wanted.need_no_session:
        if on_loop:
            finish(_load_for_loop(wanted))
        else:
            wanted.load()
    if not wanted.need_session:
        wanted.put()
        return act()
    session = opening(hooks, for_async=not stays)
    if session.is_async:
        if awaits is not None:
            return finish(_call_with(wanted, session.open(), awaits))
        finish(_call_with(wanted, session.open(), None))
        return act()
    with session.open() as found:
        wanted.load_with(found)
        wanted.put()
        if stays:
            return act()
    return act()


async def call_on_loop(wanted: WantedRows, hooks: Hooks, awaits: Awaits) -> Any:  # noqa: ANN401 (what it gives)
    """Load the rows without blocking the event loop, and await `awaits`."""
    if wanted.need_no_session:
        await _load_for_loop(wanted)
    if not wanted.need_session:
        wanted.put()
        return await awaits()
    session = opening(hooks, for_async=True)
    if session.is_async:
        return await _call_with(wanted, session.open(), awaits)

    def load() -> None:
        with session.open() as found:
            wanted.load_with(found)
            wanted.put()

    await asyncio.to_thread(load)
    return await awaits()


async def _call_with(wanted: WantedRows, opened: Any, awaits: Awaits | None) -> Any:  # noqa: ANN401 (an async session; what `awaits` gives)
    async with opened as session:
        await session.run_sync(wanted.load_with)
        wanted.put()
        if awaits is not None:
            return await awaits()
    return None


async def _load_for_loop(wanted: WantedRows) -> None:
    """Load rows of Django in the thread that its ORM uses for this task."""
    from asgiref.sync import sync_to_async  # noqa: PLC0415 (Django's, which is there)

    await sync_to_async(wanted.load)()
