"""QueueManager: from names to connections, made when first used; where drivers are added."""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any

from qframe import config, events, project
from qframe.config import BUILT_IN, ConnectionSettings, Settings
from qframe.contracts import BatchStore, Capability, FailedStore, StatusStore, Store
from qframe.drivers.base import BaseQueue
from qframe.exceptions import ConfigurationError
from qframe.names import nearest, one_line
from qframe.registry import Registry
from qframe.sealing import Keyring
from qframe.signing import Signer

log = logging.getLogger("qframe")

GROUP = "qframe.drivers"
"""The entry-point group in which a package offers a driver: its name, and its Queue class."""

Factory = Callable[[str, Any], BaseQueue]


class QueueManager:
    """The configured connections of this process (Laravel's QueueManager).

    `settings` is a `Settings`, a mapping of the same keys, or None to load the configuration.
    Raises `ConfigurationError` where it is wrong. A connection is opened when it is first used.
    """

    def __init__(self, settings: Settings | Mapping[str, Any] | None = None) -> None:
        if isinstance(settings, Settings):
            self.settings = settings
        else:
            self.settings = config.load(**settings) if settings is not None else config.load()
        project.set_root(self.settings.root)
        self.registry = Registry(self.settings.jobs)
        self.keyring = Keyring([key.get_secret_value() for key in self.settings.encryption_keys])
        self.signer = _signer(self.settings)
        """Signs and checks payloads; None where no signing key is configured."""
        self._drivers: dict[str, Factory] = {}
        self._connections: dict[str, BaseQueue] = {}
        self._lock = threading.RLock()
        self._listening = False
        self._middleware: tuple[Any, ...] | None = None

    # -- connections ----------------------------------------------------------------------------

    def connection(self, name: str | None = None) -> BaseQueue:
        """Give a connection, the default one without a name; the same object each time."""
        name = name or self.settings.default
        found = self._connections.get(name)
        if found is None:
            with self._lock:
                found = self._connections.get(name) or self._connect(name)
                self._connections[name] = found
        return found

    def extend(self, driver: str, factory: Factory) -> None:
        """Add a driver: `factory(name, settings)` gives its `BaseQueue`.

        A `settings_model` attribute of the factory is the pydantic model of its settings.
        """
        self._drivers[driver] = factory

    def names(self) -> list[str]:
        """Name the connections there are, the default first."""
        return self.settings.connection_names()

    def opened(self) -> list[BaseQueue]:
        """Give the connections used so far."""
        return list(self._connections.values())

    def close(self) -> None:
        """Close this thread's connections."""
        for queue in self.opened():
            queue.close()

    def _connect(self, name: str) -> BaseQueue:
        values = self.settings.connection(name)
        driver = values["driver"]
        factory = self._factory(str(driver), name)
        model = getattr(factory, "settings_model", ConnectionSettings)
        queue = factory(name, config.validated(model, values, name))
        self._listen()
        queue.keyring, queue.signer = self.keyring, self.signer
        queue.failed_store = self._failed_store(queue)
        queue.find_statuses = lambda: self.statuses(name)
        queue.find_batches = lambda: self.batches(name)
        queue.shared_store = lambda: self.store(name)
        queue.find_middleware = self.middleware
        if self.settings.store.driver not in {"auto", name}:
            queue.noting = False
        return queue

    def _factory(self, driver: str, connection: str) -> Factory:
        if driver in self._drivers:
            return self._drivers[driver]
        if driver in BUILT_IN:
            return _built_in(driver)
        offered = {point.name: point for point in entry_points(group=GROUP)}
        if driver in offered:
            try:
                factory: Factory = offered[driver].load()
            except Exception as error:
                raise ConfigurationError(
                    f"connections.{connection}: the driver {driver!r} cannot be loaded: {error}"
                ) from error
            return factory
        known = sorted({*BUILT_IN, *self._drivers, *offered})
        raise ConfigurationError(
            f"connections.{connection}: unknown driver {one_line(driver, 60)!r}"
            f"{nearest(driver, known)}; there are {', '.join(known)}"
        )

    # -- stores ---------------------------------------------------------------------------------

    def store(self, connection: str | None = None) -> Store:
        """Give the store of a connection: its own backend's, or the one configured."""
        queue = self.connection(connection)
        place = self.settings.store.driver
        own = queue.own_store() if place == "auto" else self.connection(place).own_store()
        if own is None and place == "auto":
            own = self.connection("database").own_store()
        if own is None:
            raise ConfigurationError(f"store: the connection {place!r} cannot hold a store")
        return own

    def statuses(self, connection: str | None = None) -> StatusStore:
        """Give where the statuses of tracked jobs are: beside the store of the connection."""
        queue = self.connection(connection)
        place = self.settings.store.driver
        own = queue.own_statuses() if place == "auto" else self.connection(place).own_statuses()
        if own is None and place == "auto":
            own = self.connection("database").own_statuses()
        if own is None:
            raise ConfigurationError(f"store: the connection {place!r} cannot hold statuses")
        return own

    def batches(self, connection: str | None = None) -> BatchStore:
        """Give where the batches of a connection are: beside its store."""
        queue = self.connection(connection)
        place = self.settings.store.driver
        own = queue.own_batches() if place == "auto" else self.connection(place).own_batches()
        if own is None and place == "auto":
            own = self.connection("database").own_batches()
        if own is None:
            raise ConfigurationError(f"store: the connection {place!r} cannot hold batches")
        return own

    def failed_store(self, connection: str | None = None) -> FailedStore:
        """Give the failed store of a connection: its own backend's, or the one configured."""
        store = self.connection(connection).failed_store
        if store is None:
            raise ConfigurationError(
                f"the connection {connection or self.settings.default!r} keeps no failed jobs"
            )
        return store

    def _failed_store(self, queue: BaseQueue) -> FailedStore | None:
        place = self.settings.failed.driver
        if place == "null":
            from qframe.drivers.null import NullFailedStore  # noqa: PLC0415 (only when asked for)

            return NullFailedStore()
        if Capability.RESERVE not in queue.capabilities:
            return None
        if place == "auto":
            return queue.own_failed_store() or self.connection("database").own_failed_store()
        if place == queue.name:
            own = queue.own_failed_store()
        else:
            own = self.connection(place).own_failed_store()
        if own is None:
            raise ConfigurationError(f"failed: the connection {place!r} cannot hold failed jobs")
        return own

    # -- middleware -----------------------------------------------------------------------------

    def middleware(self) -> tuple[Any, ...]:
        """Give the configured middleware, which all jobs that run here go through.

        Imported at the first call; a class is made an instance, once. Raises `ConfigurationError`.
        """
        if self._middleware is None:
            self._middleware = tuple(_middleware(path) for path in self.settings.middleware)
        return self._middleware

    # -- listeners ------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Add the configured listeners, once."""
        if self._listening:
            return
        self._listening = True  # already now: a listener's module may use a connection
        try:
            heard = self._listeners()
        except BaseException:
            self._listening = False
            raise
        for kind, listener in heard:
            events.listen(kind)(listener)

    def _listeners(self) -> list[tuple[type[events.Event], Callable[[Any], object]]]:
        kinds = events.kinds()
        for name in self.settings.listeners:
            if name not in kinds:
                raise ConfigurationError(
                    f"listeners: unknown event {one_line(name, 60)!r}{nearest(name, kinds)}"
                )
        return [
            (kinds[name], _function(path))
            for name, paths in self.settings.listeners.items()
            for path in paths
        ]


def _signer(settings: Settings) -> Signer | None:
    given = [*([settings.signing_key] if settings.signing_key else []), *settings.signing_keys]
    if given:
        keys = list(dict.fromkeys(key.get_secret_value() for key in given))
        return Signer(keys, require=settings.signing == "require")
    if "signing" in settings.model_fields_set:
        raise ConfigurationError(
            f"signing = {settings.signing!r} needs a signing_key: qframe key prints one"
        )
    return None


def _built_in(driver: str) -> Factory:
    """Import a driver, and with it its client, when it is first used."""
    module = importlib.import_module(f"qframe.drivers.{driver}")
    factory: Factory = getattr(module, f"{driver.title()}Queue")
    return factory


def _middleware(path: str) -> Any:  # noqa: ANN401 (a middleware, whose type is a layer above)
    found = _imported("middleware", path, "module:name")
    if isinstance(found, type):
        try:
            found = found()
        except Exception as error:
            raise ConfigurationError(
                f"middleware: {one_line(path, 100)!r} cannot be made without arguments; "
                f"name an instance of it: {one_line(str(error), 200)}"
            ) from error
    if not callable(found):
        raise ConfigurationError(
            f"middleware: {one_line(path, 100)!r} cannot be called with a job and call_next"
        )
    return found


def _imported(key: str, path: str, form: str) -> Any:  # noqa: ANN401 (whatever is there)
    module, _, name = path.partition(":")
    project.put_on_path()
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:
        raise ConfigurationError(
            f"{key}: {one_line(path, 100)!r} cannot be loaded ({form}): {error}"
        ) from error


def _function(path: str) -> Callable[[Any], object]:
    found = _imported("listeners", path, "module:function")
    if not callable(found):
        raise ConfigurationError(f"listeners: {one_line(path, 100)!r} is not a function")
    listener: Callable[[Any], object] = found
    return listener


_default: QueueManager | None = None
_making = threading.Lock()


def default() -> QueueManager:
    """Give the process's manager, from the configuration unless `use` named one."""
    global _default  # noqa: PLW0603 (one per process)
    if _default is None:
        with _making:
            if _default is None:
                _default = QueueManager()
    return _default


def current() -> QueueManager | None:
    """Give the process's manager if there is one yet."""
    return _default


def use(manager: QueueManager | None) -> None:
    """Make `manager` the one that `dispatch` uses; None loads the configuration anew."""
    global _default  # noqa: PLW0603 (one per process)
    _default = manager
