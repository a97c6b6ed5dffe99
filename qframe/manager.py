"""QueueManager: from names to connections, made when first used; where drivers are added."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import entry_points
from typing import Any, NamedTuple, cast

from qframe import config, events, forks
from qframe.config import BUILT_IN, ConnectionSettings, Settings
from qframe.connection import Connection
from qframe.contracts.backend import Backend, Capability
from qframe.contracts.outbox import Outbox
from qframe.drivers.failed_store import FailedStore
from qframe.drivers.null import NullBackend
from qframe.drivers.ordered import Opened, OrderedBackend
from qframe.drivers.sync import SyncBackend
from qframe.exceptions import ConfigurationError
from qframe.features.all import FEATURES, OTHERS
from qframe.features.context import Context
from qframe.jobs import project
from qframe.jobs.registry import Registry
from qframe.metrics.kept import Metrics
from qframe.metrics.pushes import Pushes
from qframe.otel import switch as otel
from qframe.payload import tracebacks
from qframe.payload.encryption import Keyring
from qframe.payload.signature import Signer
from qframe.payload.text import nearest, one_line

log = logging.getLogger("qframe")

GROUP = "qframe.drivers"
"""The entry-point group in which a package offers a driver: its name, and its backend class."""

Factory = Callable[..., Backend]

_DRIVERS = {
    "database": "database.backend:DatabaseBackend",
    "redis": "redis.backend:RedisBackend",
    "beanstalkd": "beanstalkd.backend:BeanstalkdBackend",
    "memory": "memory.backend:MemoryBackend",
    "sync": "sync:SyncBackend",
    "null": "null:NullBackend",
}
"""Where the drivers are that come with qframe, below `qframe.drivers`."""


_NOWHERE = {"auto", "null"}
"""What `store` and `failed` may say that is no connection's name."""


class _Own(NamedTuple):
    """A connection's own backend, which others may keep facts in."""

    backend: Backend
    settings: ConnectionSettings


connection_types: dict[type[Backend], Callable[[Context, ConnectionSettings], Connection]] = {}
"""What stands above a backend where it is no plain `Connection`: `sync` runs jobs itself."""


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
        project.set_root(self.settings.root, assumed=self.settings.origin.is_nothing)
        self.registry = Registry(self.settings.jobs)
        self.keyring = Keyring([key.get_secret_value() for key in self.settings.encryption_keys])
        self.signer = _signer(self.settings)
        """Signs and checks payloads; None where no signing key is configured."""
        self._drivers: dict[str, Factory] = {}
        self._backends: dict[str, _Own] = {}
        self._connections: dict[str, Connection] = {}
        self._outbox: Outbox | None = None
        self._lock = forks.rlock()
        self._listening = False
        self._middleware: tuple[Any, ...] | None = None

    # -- connections ----------------------------------------------------------------------------

    def connection(self, name: str | None = None) -> Connection:
        """Give a connection, the default one without a name; the same object each time."""
        name = name or self.settings.default
        found = self._connections.get(name)
        if found is None:
            with forks.undisturbed(), self._lock:
                found = self._connections.get(name) or self._connect(name)
                self._connections[name] = found
        return found

    def holding_jobs(self, only: str | None = None) -> Iterator[Connection]:
        """Give the default connection and those configured that hold jobs, or `only`."""
        names = dict.fromkeys([self.settings.default, *self.settings.connections])
        for name in [only] if only else names:
            connection = self.connection(name)
            if Capability.RESERVE in connection.capabilities or only:
                yield connection

    def extend(self, driver: str, factory: Factory) -> None:
        """Add a driver: `factory(name, settings)` gives its `Backend`.

        Its attribute `settings_model` is the pydantic model of its settings. Where `needs_facts` is
        true it is also given, third, what gives the backend in which it may keep facts.
        """
        self._drivers[driver] = factory

    def opened(self) -> list[Connection]:
        """Give the connections used so far."""
        return list(self._connections.values())

    def close(self) -> None:
        """Close this thread's connections."""
        for connection in self.opened():
            if connection.context.pushes is not None:
                connection.context.pushes.write_at_the_end()
        for own in list(self._backends.values()):
            own.backend.close()
        if self._outbox is not None:
            self._outbox.close()

    def failed_store(self, connection: str | None = None) -> FailedStore:
        """Give where the failed jobs of a connection are kept."""
        found = self.connection(connection)
        if Capability.RESERVE not in found.capabilities and self.settings.failed.driver != "null":
            raise ConfigurationError(f"the connection {found.name!r} keeps no failed jobs")
        return found.failed

    def _connect(self, name: str) -> Connection:
        own = self._own(name)
        self._listen()
        here = isinstance(own.backend, SyncBackend)
        context = Context(
            name,
            self._composed(own.backend),
            tuple(each for each in (*FEATURES, *OTHERS) if not (here and each.waits)),
            self.keyring,
            self.signer,
            own.settings.retry_after,
            own.settings.max_payload,
        )
        make = connection_types.get(type(own.backend), Connection)
        made = make(context, own.settings)
        made.find_middleware = self.middleware
        made.is_measured = self.settings.metrics and Capability.FACTS in made.capabilities
        if made.is_measured:
            context.pushes = Pushes(Metrics(made.store, name))
        return made

    # -- backends -------------------------------------------------------------------------------

    def backend(self, name: str) -> Backend:
        """Give the backend of a connection, as its driver makes it."""
        return self._own(name).backend

    def outbox(self) -> Outbox | None:
        """Give what keeps steps for backends elsewhere in the program's own transactions.

        None where none is configured; raises `ConfigurationError` for a connection that cannot.
        """
        name = self.settings.outbox.connection
        if name is None:
            return None
        with forks.undisturbed(), self._lock:
            if self._outbox is None:
                backend = self.backend(name)
                if Capability.OUTBOX not in backend.capabilities:
                    raise ConfigurationError(
                        f"outbox: the connection {name!r} is no SQL database, and so has no outbox"
                    )
                self._outbox = backend.outbox()
            return self._outbox

    def in_use(self) -> list[str]:
        """Name the default connection, those configured, and those that keep things for them."""
        settings = self.settings
        names = [settings.default, *settings.connections]
        keepers = [settings.store.driver, settings.failed.driver]
        if any(self._keeps_elsewhere(name) for name in names):
            keepers = ["database" if each == "auto" else each for each in keepers]
        keepers += [settings.outbox.connection or "null"]
        return [*dict.fromkeys([*names, *(each for each in keepers if each not in _NOWHERE)])]

    def _keeps_elsewhere(self, name: str) -> bool:
        able = self.backend(name).capabilities
        return Capability.RESERVE in able and Capability.FACTS not in able

    def _own(self, name: str) -> _Own:
        """Give the backend of a connection, the same to all who use it."""
        with forks.undisturbed(), self._lock:
            if name not in self._backends:
                values = self.settings.connection(name)
                driver = str(values["driver"])
                factory = self._factory(driver, name)
                model = BUILT_IN.get(driver, ConnectionSettings)
                model = getattr(factory, "settings_model", model)
                settings = config.validated(model, values, name)
                needs = getattr(factory, "needs_facts", False)
                more = (partial(self._facts, name),) if needs else ()
                try:
                    own = factory(name, settings, *more)
                except ConfigurationError as error:
                    raise type(error)(f"connections.{name}: {error}") from error
                self._backends[name] = _Own(own, settings)
            return self._backends[name]

    def _composed(self, own: Backend) -> Backend:
        """Give a connection's backend, with those in which it keeps facts and failed jobs."""
        if isinstance(own, NullBackend):
            return own
        facts = self._keeper("store", "a store", self.settings.store.driver, own)
        failed: Opened = NullBackend()
        if self.settings.failed.driver != "null" and Capability.RESERVE in own.capabilities:
            failed = self._keeper("failed", "failed jobs", self.settings.failed.driver, own)
        if facts is failed is own and Capability.JOINT in own.capabilities:
            return own
        return OrderedBackend(own, facts, failed, self.signer)

    def _facts(self, name: str) -> Backend:
        """Give the backend in which a connection keeps facts."""
        backend = self.connection(name).backend
        return backend.facts if isinstance(backend, OrderedBackend) else backend

    def _keeper(self, key: str, what: str, place: str, own: Backend) -> Opened:
        """Give the backend that keeps something of a connection, or what opens it."""
        if place != "auto":
            return self._able(key, what, place)
        if Capability.FACTS in own.capabilities:
            return own
        return partial(self._able, key, what, "database")

    def _able(self, key: str, what: str, place: str) -> Backend:
        found = self._own(place).backend
        if Capability.FACTS not in found.capabilities:
            raise ConfigurationError(f"{key}: the connection {place!r} cannot hold {what}")
        return found

    def _factory(self, driver: str, connection: str) -> Factory:
        if driver in self._drivers:
            return self._drivers[driver]
        if driver in _DRIVERS:  # imported, and with it its client, when it is first used
            return cast("Factory", _imported(f"qframe.drivers.{_DRIVERS[driver]}"))
        offered = {point.name: point for point in entry_points(group=GROUP)}
        if driver in offered:
            try:
                return cast("Factory", offered[driver].load())
            except Exception as error:
                raise ConfigurationError(
                    f"connections.{connection}: the driver {driver!r} cannot be loaded: "
                    f"{tracebacks.placed(error)}"
                ) from error
        known = sorted({*_DRIVERS, *self._drivers, *offered})
        raise ConfigurationError(
            f"connections.{connection}: unknown driver {one_line(driver, 60)!r}"
            f"{nearest(driver, known)}; there are {', '.join(known)}"
        )

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
            heard = [
                (_event(name), [_listener(path) for path in paths])
                for name, paths in self.settings.listeners.items()
            ]
        except BaseException:
            self._listening = False
            raise
        for kind, listeners in heard:
            for listener in listeners:
                events.listen(kind)(listener)
        if self.settings.otel.enabled:
            otel.configure(self.settings.otel)


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


def _imported(path: str) -> Any:  # noqa: ANN401 (whatever is there)
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _configured(key: str, path: str, form: str) -> Any:  # noqa: ANN401 (whatever is there)
    project.put_on_path()
    try:
        return _imported(path)
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"{key}: {one_line(path, 100)!r} cannot be loaded ({form}): {tracebacks.placed(error)}"
        ) from error


def _middleware(path: str) -> Any:  # noqa: ANN401 (a middleware, whose type is a layer above)
    found = _configured("middleware", path, "module:name")
    try:
        found = found() if isinstance(found, type) else found
    except Exception as error:
        raise ConfigurationError(
            f"middleware: {one_line(path, 100)!r} cannot be made without arguments; "
            f"name an instance of it: {tracebacks.placed(error, 200)}"
        ) from error
    if not callable(found):
        raise ConfigurationError(
            f"middleware: {one_line(path, 100)!r} cannot be called with a job and call_next"
        )
    return found


def _listener(path: str) -> Callable[[Any], object]:
    found = _configured("listeners", path, "module:function")
    if not callable(found):
        raise ConfigurationError(f"listeners: {one_line(path, 100)!r} is not a function")
    return cast("Callable[[Any], object]", found)


def _event(name: str) -> type[events.Event]:
    kinds = events.kinds()
    if name not in kinds:
        raise ConfigurationError(
            f"listeners: unknown event {one_line(name, 60)!r}{nearest(name, kinds)}"
        )
    return kinds[name]


_default: QueueManager | None = None
_making = forks.lock()


def default() -> QueueManager:
    """Give the process's manager, from the configuration unless `use` named one."""
    global _default  # noqa: PLW0603 (one per process)
    if _default is None:
        with forks.undisturbed(), _making:
            if _default is None:
                _default = QueueManager()
    return _default


def connection(name: str | None) -> Connection:
    """Give a connection of the process's manager, the default one without a name."""
    queues = _default or default()
    found = queues._connections.get(name or queues.settings.default)  # noqa: SLF001 (a call less)
    return found or queues.connection(name)


def current() -> QueueManager | None:
    """Give the process's manager if there is one yet."""
    return _default


def use(manager: QueueManager | None) -> None:
    """Make `manager` the one that `dispatch` uses; None loads the configuration anew."""
    global _default  # noqa: PLW0603 (one per process)
    _default = manager
