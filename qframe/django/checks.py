"""System checks: `QFRAME` is right, and its settings can work."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004 (Django's own name)
from django.core.exceptions import ImproperlyConfigured
from django.urls import NoReverseMatch, reverse

from qframe import config
from qframe.contracts.backend import Capability
from qframe.django import conf, tables
from qframe.exceptions import ConfigurationError, QframeError
from qframe.manager import QueueManager
from qframe.payload.text import one_line


def check_settings(**_: Any) -> list[CheckMessage]:  # noqa: ANN401 (Django's)
    """Finds what is wrong with `QFRAME`, without asking a backend."""
    try:
        queues = QueueManager(config.load())
        default = queues.backend(queues.settings.default)
    except ConfigurationError as error:
        return [Error(str(error), id="qframe.E001")]
    found: list[CheckMessage] = []
    if conf.mode() == "within" and not _can_push_within(queues, default.capabilities):
        found.append(
            Error(
                f"{conf.NAME}: DISPATCH is 'within', but the jobs of {queues.settings.default!r} "
                "are in no SQL database and there is no outbox",
                hint='Name the database\'s connection: "outbox": {"connection": ...}.',
                id="qframe.E002",
            )
        )
    found += [
        Warning(
            f"{conf.NAME}: connections.{name}: its database is in memory, and so are the jobs: "
            "no worker sees them",
            id="qframe.W003",
        )
        for name in queues.settings.connections
        if (alias := conf.database_of(name)) is not None and conf.is_in_memory(alias)
    ]
    if conf.given() is None:
        found.append(
            Warning(
                "there is no QFRAME in the settings: qframe.toml, or the built-in defaults, hold",
                hint='QFRAME = {"default": "database", "connections": {"database": '
                '{"driver": "database", "django": "default"}}}',
                id="qframe.W001",
            )
        )
    return found


def check_addresses(**_: Any) -> list[CheckMessage]:  # noqa: ANN401 (Django's)
    """Finds a dashboard mounted where it hides the admin's own list."""
    if not getattr(settings, "ROOT_URLCONF", None):  # as in the settings of a worker
        return []
    try:
        board = str(reverse("qframe-board:board"))
        listed = str(reverse("admin:qframe_failedjob_changelist"))
    except (NoReverseMatch, ImproperlyConfigured):
        return []
    if not listed.startswith(board):
        return []
    return [
        Warning(
            f"the dashboard at {board} hides the admin's failed jobs at {listed}",
            hint='Mount it beside them: path("admin/queues/", include("qframe.django.urls")).',
            id="qframe.W002",
        )
    ]


def check_databases(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:  # noqa: ANN401 (Django's)
    """Finds tables that are missing or due for an upgrade, in the databases that Django names."""
    if sys.argv[1:2] == ["migrate"]:  # which makes them after its checks
        return []
    return _tables([name for alias in databases or () for name in tables.names_in(alias)])


def check_connections(
    app_configs: Sequence[AppConfig] | None = None,
    **_: Any,  # noqa: ANN401 (Django's)
) -> list[CheckMessage]:
    """Finds them on all connections, if a person runs `manage.py check` without a database.

    Other commands run the checks, too, and Django does not tell which command it is.
    """
    by_hand = sys.argv[1:2] == ["check"] and not any(each.startswith("--da") for each in sys.argv)
    is_meant = app_configs is None or any(each.label == "qframe" for each in app_configs)
    return _tables() if by_hand and is_meant else []


def _tables(names: Sequence[str] | None = None) -> list[CheckMessage]:
    """Checks the tables of some connections, or of all."""
    if names is not None and not names:
        return []
    try:
        queues = QueueManager(config.load())
    except ConfigurationError:  # `check_settings` reports it
        return []
    return list(_unmigrated(queues, [*queues.settings.connections] if names is None else names))


def _unmigrated(queues: QueueManager, names: Sequence[str]) -> Iterator[CheckMessage]:
    failed: set[str] = set()
    for name in names:
        where = f"{queues.settings.origin.file or conf.NAME}: connections.{name}"
        place = name
        try:
            backend = queues.backend(name)
            place = backend.described()
            # SQLite's tables are made when they are first used.
            due = backend.migration() if backend.path() is None and place not in failed else None
            backend.close()
        except QframeError as error:
            if name == place == queues.settings.default:  # `check_settings` reports it
                continue
            failed.add(place)
            words = one_line(str(error)).removeprefix(f"connections.{name}: ")
            yield Warning(f"{where}: {words}", id="qframe.W005")
            continue
        if due:
            own = queues.settings.connection(name).get("migrate_command")
            yield Warning(
                f"{where}: the queue's tables are missing or to be upgraded in {place}",
                hint=f"Run: {own or f'{config.framework.command_line} migrate'}",
                id="qframe.W004",
            )


def _can_push_within(queues: QueueManager, able: Capability) -> bool:
    return (
        Capability.WITHIN in able
        or Capability.RESERVE not in able
        or queues.settings.outbox.connection is not None
    )
