"""QFRAME: the settings of Django's project, with its databases as connections."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, cast

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS
from sqlalchemy.engine import URL

from qframe import config
from qframe.config import ConnectionSettings, Settings
from qframe.exceptions import ConfigurationError
from qframe.payload.text import nearest, one_line

NAME: Final = "settings.QFRAME"
Mode = Literal["on_commit", "within", "now"]
MODES: Final = ("on_commit", "within", "now")
_OWN: Final = ("DISPATCH", "DISPATCH_USING")
"""The keys that only Django has."""
_KINDS: Final = {
    "postgresql": "postgresql+psycopg",
    "mysql": "mariadb+pymysql",
    "sqlite": "sqlite",
}
"""Django's vendors, and SQLAlchemy's names of the drivers that qframe uses."""


def join() -> None:
    """Makes this process read its settings here, and name the command line that does so, too."""
    config.framework.source = source
    config.framework.setting = NAME
    config.framework.command_line = "manage.py qframe"


def given() -> Mapping[str, Any] | None:
    """Returns `QFRAME` as it is written; None if the project has none."""
    found = getattr(settings, "QFRAME", None)
    if found is not None and not isinstance(found, Mapping):
        raise ConfigurationError(f"{NAME}: must be a dict, not {type(found).__name__}")
    return found


def source() -> tuple[str, Mapping[str, Any]] | None:
    """Returns the settings as `qframe.toml` would have them. Raises `ConfigurationError`."""
    found = given()
    if found is None:
        return None
    _check_keys(found)
    values = {key: value for key, value in found.items() if key not in _OWN}
    values.setdefault("root", str(getattr(settings, "BASE_DIR", Path.cwd())))
    if isinstance(values["root"], Path):
        values["root"] = str(values["root"])
    connections = values.get("connections")
    if isinstance(connections, Mapping):
        values["connections"] = {
            name: _connection(name, each) for name, each in connections.items()
        }
    return NAME, values


def _check_keys(found: Mapping[str, Any]) -> None:
    known = [*Settings.model_fields, *_OWN]
    for key in found:
        if key not in known:
            raise ConfigurationError(
                f"{NAME}: unknown key {one_line(str(key), 60)!r}{nearest(str(key), known)}"
            )
    mode()
    using()


def mode() -> Mode:
    """Returns what becomes of a dispatch in a transaction. Raises `ConfigurationError`."""
    found = (given() or {}).get("DISPATCH", "on_commit")
    if found not in MODES:
        raise ConfigurationError(
            f"{NAME}: DISPATCH is {one_line(repr(found), 60)}; it is one of {', '.join(MODES)}"
        )
    return cast("Mode", found)


def using() -> str | None:
    """Returns the one database whose transactions count; None: any. Raises `ConfigurationError`."""
    found = (given() or {}).get("DISPATCH_USING")
    if found is not None and found not in settings.DATABASES:
        raise ConfigurationError(f"{NAME}: DISPATCH_USING {_no_database(found)}")
    return cast("str | None", found)


def database_of(connection: str) -> str | None:
    """Returns the alias of the Django database that holds a connection's jobs."""
    each = ((given() or {}).get("connections") or {}).get(connection)
    return each.get("django") if isinstance(each, Mapping) else None


def _connection(name: str, given: Any) -> Any:  # noqa: ANN401 (whatever stands there; pydantic judges it)
    if not isinstance(given, Mapping) or "django" not in given:
        return given
    where = f"{NAME}: connections.{name}"
    if "url" in given:
        raise ConfigurationError(f"{where}: give either django or url, not both")
    if given.get("driver", "database") != "database":
        raise ConfigurationError(f"{where}: django is for the driver 'database'")
    alias = given["django"]
    if alias not in settings.DATABASES:
        raise ConfigurationError(f"{where}: django {_no_database(alias)}")
    rest = {key: value for key, value in given.items() if key != "django"}
    if is_in_memory(str(alias)):  # mostly a test's: its jobs are where its rows are
        shared = ConnectionSettings.model_fields
        return {**{key: rest[key] for key in rest if key in shared}, "driver": "memory"}
    known = {"driver": "database", "migrate_command": migrate_command(str(alias))}
    return {**known, **rest, "url": url_of(str(alias), where)}


def migrate_command(alias: str) -> str:
    """Returns the command that makes the tables in a database of Django's."""
    default = alias == DEFAULT_DB_ALIAS
    return "manage.py migrate" if default else f"manage.py migrate --database {alias}"


def is_in_memory(alias: str) -> bool:
    """Whether a database is SQLite's in the memory of this process."""
    from django.db import connections  # noqa: PLC0415 (the settings have to be there)

    name = str(connections[alias].settings_dict["NAME"])
    in_memory = name == ":memory:" or "mode=memory" in name
    return bool(connections[alias].vendor == "sqlite" and in_memory)


def _no_database(alias: object) -> str:
    known = [*settings.DATABASES]
    return (
        f"names {one_line(repr(alias), 60)}, which is not in DATABASES{nearest(str(alias), known)}"
    )


def url_of(alias: str, where: str = NAME) -> str:
    """Returns a Django database as a URL. Raises `ConfigurationError` for an unsupported one."""
    from django.db import connections  # noqa: PLC0415 (the settings have to be there)

    wrapper = connections[alias]
    # `settings_dict` follows the test runner, which gives databases other names.
    values, kind = wrapper.settings_dict, wrapper.vendor
    if kind not in _KINDS:
        raise ConfigurationError(
            f"{where}: the database {alias!r} is {kind}; jobs can be in sqlite, postgresql, mysql"
        )
    name = str(values["NAME"])
    if kind == "sqlite":
        return f"sqlite:///{Path(name).absolute()}"
    options = values.get("OPTIONS") or {}
    query = {key: str(value) for key, value in options.items() if key in _QUERY[kind]}
    host = str(values.get("HOST") or "")
    if kind == "mysql" and host.startswith("/"):
        query, host = {**query, "unix_socket": host}, ""
    elif kind == "postgresql" and host.startswith("/"):
        query, host = {**query, "host": host}, ""
    made = URL.create(
        _KINDS[kind].partition("+")[0],
        values.get("USER") or None,
        values.get("PASSWORD") or None,
        host or None,
        int(values["PORT"]) if values.get("PORT") else None,
        name,
        query,
    )
    return made.render_as_string(hide_password=False)


_QUERY: Final = {
    "postgresql": {"sslmode", "sslrootcert", "sslcert", "sslkey", "service", "connect_timeout"},
    "mysql": {"charset", "unix_socket"},
}
"""Django's OPTIONS that go into the URL."""
