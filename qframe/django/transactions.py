"""The Django transactions a dispatch belongs to, and when it is pushed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import connections

from qframe.connection import Connection
from qframe.django import conf


class OpenAtomic:
    """The outermost open `atomic` blocks of a dispatch.

    If several databases have one, the job is pushed when the last of them has been committed, and
    never if one of them is rolled back.
    """

    def __init__(self, wrappers: list[Any], inside: Any) -> None:  # noqa: ANN401 (Django's connection)
        self._wrappers = wrappers
        self._inside = inside

    def within(self) -> object | None:
        """Returns the connection to push in now; None: push after the commit."""
        inside = self._inside
        return inside if inside is not None and inside.in_atomic_block else None

    def on_commit(self, act: Callable[[], None]) -> None:
        """Calls `act` once all are committed."""
        left = len(self._wrappers)

        def committed() -> None:
            nonlocal left
            left -= 1
            if not left:
                act()

        for wrapper in self._wrappers:
            wrapper.on_commit(committed)


def find_open(connection: Connection) -> OpenAtomic | None:
    """Returns the open transactions of this thread, unless dispatches go at once."""
    wrappers = [each for each in connections.all(initialized_only=True) if each.in_atomic_block]
    if not wrappers or (mode := conf.mode()) == "now":
        return None
    only = conf.using()
    if only is not None:
        wrappers = [each for each in wrappers if each.alias == only]
    # A TestCase keeps one open on each of its databases: blocks inside it count, if any.
    begun = [each for each in wrappers if not _is_of_test(each)]
    wrappers = begun or wrappers[:1]
    if not wrappers:
        return None
    # In memory, as in tests, the program's transaction is the only one: its commit will do.
    is_within = mode == "within" and connection.settings.driver != "memory"
    return OpenAtomic(wrappers, _inside(wrappers, connection) if is_within else None)


def _is_of_test(wrapper: Any) -> bool:  # noqa: ANN401 (Django's connection)
    blocks = wrapper.atomic_blocks
    return bool(blocks) and all(getattr(each, "_from_testcase", False) for each in blocks)


def _inside(wrappers: list[Any], connection: Connection) -> Any:  # noqa: ANN401 (Django's connection)
    """Returns the transaction to push in: of the database that the jobs, or the outbox, are in."""
    from qframe import manager  # noqa: PLC0415 (made by the first dispatch)

    outbox = manager.default().settings.outbox.connection
    wanted = {conf.database_of(connection.name), outbox and conf.database_of(outbox)}
    return next((each for each in wrappers if each.alias in wanted), wrappers[0])
