"""The app: settings from `QFRAME`, jobs of all apps, dispatches that follow their transactions."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig, apps
from django.core import checks
from django.core.signals import setting_changed
from django.db import connections
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate, pre_migrate
from django.utils.module_loading import module_has_submodule

from qframe import manager
from qframe.dispatch.draft import flush
from qframe.django import checks as own_checks
from qframe.django import conf, database, tables, transactions
from qframe.hooks import of_process

_MODULES = ("jobs", "tasks")


class QframeConfig(AppConfig):
    """Connects qframe and the project; opens nothing of a backend."""

    name = "qframe.django"
    label = "qframe"
    verbose_name = "Queue"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Connects them."""
        conf.join()
        # Django's settings are the process's, and so are its hooks.
        of_process.find_open = transactions.find_open
        of_process.modules = job_modules()
        manager.use(None)  # a manager made before knew nothing of these
        checks.register(own_checks.check_settings, "qframe")
        checks.register(own_checks.check_databases, "database")
        checks.register(own_checks.check_connections, "qframe")
        checks.register(own_checks.check_addresses, "urls")
        setting_changed.connect(_changed, dispatch_uid="qframe")
        connection_created.connect(_let_go, dispatch_uid="qframe")
        pre_migrate.connect(_begin_anew, sender=self, dispatch_uid="qframe")
        post_migrate.connect(tables.make, sender=self, dispatch_uid="qframe")
        _join_tasks()
        # After the signals of tasks, whose receivers may use the ORM.
        database.look_after_connections()


def job_modules() -> list[str]:
    """Returns the modules `jobs` and `tasks` of all apps; imports none."""
    return [
        f"{app.name}.{name}"
        for app in apps.get_app_configs()
        for name in _MODULES
        if app.name != "qframe.django" and module_has_submodule(app.module, name)
    ]


def _join_tasks() -> None:
    """Makes workers run tasks of `django.tasks`, or of its backport, if installed."""
    try:
        from qframe.django import task_jobs  # noqa: PLC0415 (Django may have no tasks)
    except ImportError:
        return
    task_jobs.join()


def _changed(*, setting: str, **_: object) -> None:
    """Applies a `QFRAME` that a test has overridden."""
    if setting in {"QFRAME", "DATABASES"}:
        _begin_anew()


def _let_go(*, connection: Any, **_: object) -> None:  # noqa: ANN401 (Django's)
    """Closes all connections of this process to Django's databases, before one is dropped.

    The process that drops or copies one, as a test runner does, connects without a database.
    """
    if connection.alias != NO_DB_ALIAS:
        return
    from qframe.drivers.database import opened  # noqa: PLC0415 (jobs may be elsewhere)

    flush()
    _begin_anew()
    opened.close_all({str(each.settings_dict["NAME"]) for each in connections.all()})


def _begin_anew(**_: object) -> None:
    """Reads the settings again: a test runner has given the databases other names."""
    before = manager.current()
    if before is not None:
        before.close()
    manager.use(None)
