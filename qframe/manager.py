"""QueueManager: opens connections by name on first use; drivers are added here."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from importlib.metadata import entry_points
from typing import Any, NamedTuple, cast

from qframe import config, events, forks
from qframe.config import ConnectionSettings, Places, Settings
from qframe.connection import Connection
from qframe.contracts.backend import Backend, Capability
from qframe.contracts.failed import FailedJob
from qframe.contracts.outbox import Outbox
from qframe.drivers.failed_store import FailedStore
from qframe.drivers.null import NullBackend
from qframe.drivers.ordered import Opened, OrderedBackend
from qframe.drivers.sync import SyncBackend
from qframe.exceptions import BackendUnusable, ConfigurationError
from qframe.features.all import FEATURES
from qframe.features.context import Context
from qframe.hooks import Hooks, of_process
from qframe.jobs import named, project
from qframe.jobs.foreign import Dispatchable
from qframe.jobs.hooks import is_generator
from qframe.jobs.options import MIDDLEWARE_YIELDS
from qframe.jobs.registry import Registry
from qframe.jobs.routing import route_of
from qframe.metrics.kept import Metrics
from qframe.metrics.pushes import Pushes
from qframe.otel import switch as otel
from qframe.payload import tracebacks
from qframe.payload.encryption import Keyring
from qframe.payload.signature import Signer
from qframe.payload.text import nearest, one_line

log = logging.getLogger("qframe")

GROUP = "qframe.drivers"
"""The entry-point group for drivers in other packages: name, and backend class."""

Factory = Callable[..., Backend]

_DRIVERS = {
    "database": "database.backend:DatabaseBackend",
    "redis": "redis.backend:RedisBackend",
    "beanstalkd": "beanstalkd.backend:BeanstalkdBackend",
    "rabbitmq": "rabbitmq.backend:RabbitmqBackend",
    "failover": "failover.backend:FailoverBackend",
    "sqs": "sqs.backend:SqsBackend",
    "memory": "memory.backend:MemoryBackend",
    "sync": "sync:SyncBackend",
    "deferred": "sync:DeferredBackend",
    "background": "sync:BackgroundBackend",
    "null": "null:NullBackend",
}
"""The drivers that come with qframe, below `qframe.drivers`."""


_NOWHERE = {"auto", "null"}
"""Values of `store` and `failed` that are not the name of a connection."""


class _Own(NamedTuple):
    """A connection's own backend, in which others may keep facts."""

    backend: Backend
    settings: ConnectionSettings


connection_types: dict[type[Backend], Callable[[Context, ConnectionSettings], Connection]] = {}
"""The connection class of backends without a plain `Connection`: `sync` runs jobs itself."""


class QueueManager:
    """The configured connections of this process (Laravel's QueueManager).

    `settings` is a `Settings`, a mapping with the same keys, or None to load the configuration.
    Wrong ones raise `ConfigurationError`. A connection is opened on first use. `hooks` are those
    of its application, by default those that a framework set for the process.
    """

    def __init__(
        self,
        settings: Settings | Mapping[str, Any] | None = None,
        hooks: Hooks = of_process,
    ) -> None:
        self.hooks = hooks
        if isinstance(settings, Settings):
            self.settings = settings
        else:
            self.settings = config.load(**settings) if settings is not None else config.load()
        project.set_root(self.settings.root, assumed=self.settings.origin.is_nothing)
        self.registry = Registry(self.settings.jobs, hooks)
        self.keyring = Keyring([key.get_secret_value() for key in self.settings.encryption_keys])
        self.signer = _signer(self.settings)
        """Signs and checks payloads; None without a configured signing key."""
        self.places: Places | None = None
        """The routes and forwards; None without any, so that a dispatch need not look."""
        if self.settings.routes or self.settings.forward:
            self.places = Places(self.settings.routes, self.settings.forward)
        self._drivers: dict[str, Factory] = {}
        self._backends: dict[str, _Own] = {}
        self._connections: dict[str, Connection] = {}
        self._in_place_of: dict[tuple[str, str], Connection] = {}
        self._outbox: Outbox | None = None
        self._lock = forks.rlock()
        self._listening = False
        self._middleware: tuple[Any, ...] | None = None

    # -- connections ----------------------------------------------------------------------------

    def connection(self, name: str | None = None) -> Connection:
        """Return a connection, by default the default one; the same object each time.

        Raises `ConfigurationError`.
        """
        given: object = name
        if given is not None and not isinstance(given, str):
            shown = one_line(type(given).__name__, 60)
            raise ConfigurationError(f"the name of a connection is text, not {shown}")
        name = name or self.settings.default
        found = self._connections.get(name)
        if found is None:
            with forks.undisturbed(), self._lock:
                found = self._connections.get(name) or self._connect(name)
                self._connections[name] = found
        return found

    def connection_of(
        self, job: Dispatchable, name: str | None = None, queue: str | None = None
    ) -> Connection:
        """Return the connection for a job: `name`, its own, that of its route, or the default one.

        If pushes for its queue, `queue` or its own, are forwarded to another connection: that one.
        Raises `ConfigurationError`.
        """
        name = name or job.connection
        if self.places is None:
            return self.connection(name)
        found = self.connection(name or route_of(self.places, job).connection)
        return self.forwarded(found, found.queue_for(job, queue))

    def forwarded(self, connection: Connection, queue: str) -> Connection:
        """Return the connection for a push to a queue of another: that one, or where it moved."""
        place = None if self.places is None else self.places.forwarded(queue, connection.name)
        if place is None or place.connection == connection.name:
            return connection
        found = self.connection(place.connection)
        if found.default_queue == connection.default_queue:
            return found
        key = found.name, connection.default_queue  # a job that names no queue means that one
        made = self._in_place_of.get(key)
        return made or self._in_place_of.setdefault(key, found.with_default(key[1]))

    def holding_jobs(self, only: str | None = None) -> Iterator[Connection]:
        """Iterate over the connections with jobs: the default and configured ones, or `only`."""
        names = dict.fromkeys([self.settings.default, *self.settings.connections])
        for name in [only] if only else names:
            connection = self.connection(name)
            if Capability.RESERVE in connection.capabilities or only:
                yield connection

    def extend(self, driver: str, factory: Factory) -> None:
        """Add a driver: `factory(name, settings)` returns its `Backend`.

        Its attribute `settings_model` is the pydantic model of its settings. If its `needs_facts`
        is true, it also gets, third, a function that returns the backend for its facts.
        """
        self._drivers[driver] = factory

    def opened(self) -> list[Connection]:
        """Return the connections used so far."""
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
        """Return the failed jobs of a connection. Raises `ConfigurationError` if it keeps none."""
        found = self.connection(connection)
        if self.settings.failed.driver != "null" and not _keeps_failed(self.backend(found.name)):
            raise ConfigurationError(f"the connection {found.name!r} keeps no failed jobs")
        return found.failed

    def _store_of(self, store: FailedStore, record: FailedJob) -> FailedStore:
        """Return the store of a record's connection; `store` if that is no longer configured."""
        try:
            return self.connection(record.connection).failed
        except ConfigurationError:
            return store

    def _connect(self, name: str) -> Connection:
        own = self._own(name)
        self._listen()
        here = isinstance(own.backend, SyncBackend)
        context = Context(
            name,
            self._composed(own.backend),
            tuple(each for each in (*FEATURES, *self.hooks.features) if not (here and each.waits)),
            self.keyring,
            self.signer,
            own.settings.retry_after,
            own.settings.max_payload,
            hooks=self.hooks,
            groups=self.settings.groups,
        )
        make = connection_types.get(type(own.backend), Connection)
        made = make(context, own.settings)
        made.find_middleware = self.middleware
        made.payload_keys = own.backend.payload_keys
        made.places = self.places
        made.find_forwarded = self.forwarded
        made.failed.store_of = partial(self._store_of, made.failed)
        made.is_measured = self.settings.metrics and Capability.FACTS in made.capabilities
        if made.is_measured:
            context.pushes = Pushes(Metrics(made.store, name))
        return made

    # -- backends -------------------------------------------------------------------------------

    def backend(self, name: str) -> Backend:
        """Return the backend of a connection, as its driver made it."""
        return self._own(name).backend

    def outbox(self) -> Outbox | None:
        """Return the outbox for steps of other backends in the program's transactions.

        None if none is configured. Raises `ConfigurationError` if the connection cannot have one.
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
        """Return the default and configured connections, their parts, and where they store."""
        settings = self.settings
        names = [settings.default, *settings.connections]
        for name in [*names]:
            parts = settings.connection(name).get("connections")
            names += parts if isinstance(parts, list) else ()
        keepers = [settings.store.driver, settings.failed.driver]
        if any(self._keeps_elsewhere(name) for name in names):
            keepers = ["database" if each == "auto" else each for each in keepers]
        keepers += [settings.outbox.connection or "null"]
        return [*dict.fromkeys([*names, *(each for each in keepers if each not in _NOWHERE)])]

    def _keeps_elsewhere(self, name: str) -> bool:
        able = self.backend(name).capabilities
        return Capability.RESERVE in able and Capability.FACTS not in able

    def _own(self, name: str) -> _Own:
        with forks.undisturbed(), self._lock:
            if name not in self._backends:
                values = self.settings.connection(name)
                driver = str(values["driver"])
                factory = self._factory(driver, name)
                model = getattr(factory, "settings_model", ConnectionSettings)
                settings = config.validated(model, values, name)
                needs = getattr(factory, "needs_facts", False)
                more: list[Callable[..., Backend]] = [partial(self._facts, name)] if needs else []
                if getattr(factory, "needs_backends", False):
                    more.append(partial(self._member, driver))
                try:
                    own = factory(name, settings, *more)
                except ConfigurationError as error:
                    raise type(error)(f"connections.{name}: {error}") from error
                self._backends[name] = _Own(own, settings)
            return self._backends[name]

    def _member(self, driver: str, name: str) -> Backend:
        """Return the backend of a connection for one of this driver, which has several."""
        if self.settings.connection(name)["driver"] == driver:
            raise ConfigurationError(f"{name!r} has driver = {driver!r} as well: name others")
        return self.backend(name)

    def _composed(self, own: Backend) -> Backend:
        """Return a connection's backend, combined with those for its facts and failed jobs."""
        if isinstance(own, NullBackend):
            return own
        facts = self._keeper("store", "a store", self.settings.store.driver, own)
        failed: Opened = NullBackend()
        if self.settings.failed.driver != "null" and _keeps_failed(own):
            failed = self._keeper("failed", "failed jobs", self.settings.failed.driver, own)
        if facts is failed is own and Capability.JOINT in own.capabilities:
            return own
        return OrderedBackend(own, facts, failed, self.signer)

    def _facts(self, name: str) -> Backend:
        backend = self.connection(name).backend
        return backend.facts if isinstance(backend, OrderedBackend) else backend

    def _keeper(self, key: str, what: str, place: str, own: Backend) -> Opened:
        """Return the backend that stores something for a connection, or its opener."""
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
        if driver in _DRIVERS:  # imported, with its client, on first use
            return cast("Factory", named.imported(f"qframe.drivers.{_DRIVERS[driver]}"))
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
        """Return the configured middleware of all jobs that run here.

        The first call imports it; a class becomes an instance, once. Raises `ConfigurationError`.
        """
        if self._middleware is None:
            self._middleware = tuple(_middleware(path) for path in self.settings.middleware)
        return self._middleware

    # -- listeners ------------------------------------------------------------------------------

    def _listen(self) -> None:
        if self._listening:
            return
        self._listening = True  # set first: a listener's module may use a connection
        try:
            resolved = [
                (_event(name), [named.function("listeners", path) for path in paths])
                for name, paths in self.settings.listeners.items()
            ]
        except BaseException:
            self._listening = False
            raise
        for kind, listeners in resolved:
            for listener in listeners:
                events.listen(kind)(listener)
        if self.settings.otel.enabled:
            otel.configure(self.settings.otel)


def _keeps_failed(backend: Backend) -> bool:
    return backend.keeps_failed or Capability.RESERVE in backend.capabilities


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


def _middleware(path: str) -> Any:  # noqa: ANN401 (a middleware, whose type is a layer above)
    found = named.loaded("middleware", path)
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
    if is_generator(found):
        raise ConfigurationError(f"middleware: {one_line(path, 100)!r}: {MIDDLEWARE_YIELDS}")
    return found


def _event(name: str) -> type[events.Event]:
    kinds = events.kinds()
    if name not in kinds:
        raise ConfigurationError(
            f"listeners: unknown event {one_line(name, 60)!r}{nearest(name, kinds)}"
        )
    return kinds[name]


find: Callable[[], QueueManager] | None = None
"""Set by a framework whose process may have several applications: the manager of the one that runs
here. Of the process: it is asked before a manager is known. What `use` has set comes first.
"""
_default: QueueManager | None = None
_of_worker: ContextVar[QueueManager | None] = ContextVar("qframe_manager", default=None)
"""The manager of the worker whose job this context runs: a process may have several workers."""
_making = forks.lock()
TOO_LATE = (
    "not dispatched: the interpreter is ending, and imports nothing any more that this dispatch "
    "needs. Dispatch earlier, for example in a function of `atexit`"
)


def default() -> QueueManager:
    """Return the manager for `dispatch`, from the configuration unless `use` set one."""
    global _default  # noqa: PLW0603 (one per process)
    if (of_worker := _of_worker.get()) is not None:
        return of_worker
    if _default is None:
        if find is not None:
            return find()
        with forks.undisturbed(), _making:
            if _default is None:
                _default = QueueManager()
    return _default


def connection_of(job: Dispatchable) -> Connection:
    """Return the connection for a job that is dispatched, by the process's manager."""
    try:
        queues = _of_worker.get() or _default or default()
        if queues.places is not None:
            return queues.connection_of(job)
        found = queues._connections.get(job.connection or queues.settings.default)  # noqa: SLF001 (saves a call)
        return found or queues.connection(job.connection)
    except ImportError:
        if sys.is_finalizing():
            raise BackendUnusable(TOO_LATE) from None
        raise


def current() -> QueueManager | None:
    """Return the process's manager; None if there is none yet, or applications have theirs."""
    return _of_worker.get() or _default


def use(manager: QueueManager | None) -> None:
    """Make `manager` the one for `dispatch`; None loads the configuration again."""
    global _default  # noqa: PLW0603 (one per process)
    _default = manager
    if _of_worker.get() is not None:  # a job's own choice
        _of_worker.set(manager)


@contextlib.contextmanager
def work_for(manager: QueueManager) -> Iterator[None]:
    """Make `manager` the one for the jobs of a worker, and of the process unless it finds its own.

    A thread that a job starts without its context has that of the process.
    """
    if find is None:
        use(manager)
    token = _of_worker.set(manager)
    try:
        yield
    finally:
        _of_worker.reset(token)
