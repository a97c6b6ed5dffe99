"""The settings of an app: those with a counterpart in qframe; all others are refused by name."""

from __future__ import annotations

import fnmatch
import importlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from types import ModuleType
from typing import Any, Final

from qframe.celery import broker
from qframe.celery.exceptions import ImproperlyConfigured, NotSupported
from qframe.celery.missing import refusal, refused
from qframe.payload.text import nearest, one_line

log = logging.getLogger("qframe")

DEFAULTS: Final[dict[str, Any]] = {
    "accept_content": ["json"],
    "beat_schedule": {},
    "broker_url": None,
    "enable_utc": True,
    "imports": (),
    "include": (),
    "result_backend": None,
    "result_expires": 86400,
    "result_serializer": "json",
    "task_acks_late": True,
    "task_always_eager": False,
    "task_default_priority": None,
    "task_default_queue": None,
    "task_eager_propagates": False,
    "task_ignore_result": False,
    "task_reject_on_worker_lost": True,
    "task_routes": None,
    "task_serializer": "json",
    "task_soft_time_limit": None,
    "task_time_limit": None,
    "task_track_started": True,
    "timezone": None,
}

_ALWAYS: Final[dict[str, tuple[Callable[[Any], bool], str]]] = {
    "accept_content": (
        lambda v: bool(v) and set(v) <= {"json", "application/json"},
        "JSON; pickle is refused, so pass ids and plain values",
    ),
    "enable_utc": (lambda v: v is True, "UTC inside; set timezone for schedules"),
    "result_serializer": (lambda v: v == "json", "json"),
    "task_acks_late": (
        lambda v: v is True,
        "True, a job is deleted after it ran; for at most one start, max_retries=0",
    ),
    "task_reject_on_worker_lost": (
        lambda v: v is True,
        "True; for at most one start, max_retries=0",
    ),
    "task_serializer": (
        lambda v: v == "json",
        "json; pickle is refused, so pass ids and plain values",
    ),
    "task_track_started": (lambda v: v is True, "True, it is always so"),
}
"""Settings that qframe has one value for: which, and the line for any other."""

_REFUSED: Final = {
    "beat_cron_starting_deadline": "catch_up of qframe.schedule",
    "beat_max_loop_interval": "nothing: a worker wakes when a schedule is due",
    "beat_schedule_filename": "nothing: what ran is kept in the connection",
    "beat_scheduler": "beat_schedule, or rows: qframe schedule add",
    "broker_connection_": "nothing: a worker waits for its backend",
    "broker_failover_strategy": "sentinels of a Redis connection in qframe.toml",
    "broker_heartbeat": "nothing: leases are renewed",
    "broker_login_method": "the URL of the connection",
    "broker_pool_limit": "pool of a connection in qframe.toml",
    "broker_read_url": "broker_url",
    "broker_transport": "the URL of the connection",
    "broker_transport_options": "the connection in qframe.toml: retry_after, prefix, sentinels",
    "broker_use_ssl": "rediss:// in the URL of the connection",
    "broker_write_url": "broker_url",
    "cache_backend": "nothing: results are kept beside the jobs",
    "control_": "qframe workers, pause, restart and cancel",
    "database_": "nothing: results are kept beside the jobs",
    "event_": "qframe.events",
    "redis_": "the connection in qframe.toml",
    "result_": "nothing: results are JSON beside the jobs, kept for result_expires",
    "security_": "signing_key in qframe.toml",
    "task_acks_on_failure_or_timeout": "nothing: a failed task is kept among the failed ones",
    "task_allow_error_cb_on_chord_header": "link_error of the chord",
    "task_annotations": "options of the tasks, or a base class",
    "task_compression": "nothing: keep large values elsewhere and pass their key",
    "task_create_missing_queues": "nothing: a queue is there once something is in it",
    "task_default_delivery_mode": "nothing: jobs are always kept",
    "task_default_exchange": "task_default_queue",
    "task_default_rate_limit": "RateLimited of qframe.middleware",
    "task_default_routing_key": "task_default_queue",
    "task_protocol": "nothing: there is one",
    "task_publish_retry": "push_retries of a connection in qframe.toml",
    "task_queue_": "priority= of a task",
    "task_queues": "task_routes, and qframe work --queue a,b",
    "task_remote_tracebacks": "nothing: AsyncResult.traceback has it",
    "task_send_sent_event": "events.JobQueued of qframe",
    "task_store_e": "nothing: failed tasks are always kept",
    "worker_autoscaler": "qframe work --min 1 --workers 8",
    "worker_cancel_long_running": "nothing: a lease that was lost ends the job",
    "worker_concurrency": "qframe work --concurrency N, or --workers N",
    "worker_disable_rate_limits": "RateLimited of qframe.middleware",
    "worker_hijack_root_logger": "logging.config in the application",
    "worker_log": "logging.config in the application",
    "worker_max_memory_per_child": "qframe work --memory 256",
    "worker_max_tasks_per_child": "qframe work --max-jobs 1000",
    "worker_pool": "qframe work --concurrency, --workers or --isolate",
    "worker_prefetch_multiplier": "nothing: only short jobs are reserved ahead",
    "worker_redirect_stdouts": "logging.config in the application",
    "worker_send_task_events": "nothing: qframe.events are always there",
    "worker_soft_shutdown": "qframe work --grace 5",
    "worker_task_log_format": "qframe work --json, or logging.config",
    "worker_": "the options of qframe work, or qframe.toml",
}
"""Settings, or how their names begin, with what to use instead; the longest one counts."""

Route = Callable[..., Any]


class Conf(MutableMapping[str, Any]):
    """`app.conf`: settings by Celery's names, as attributes and as keys.

    Raises `NotSupported` for a setting without a counterpart.
    """

    def __init__(self) -> None:
        self.__dict__["_values"] = {}
        self.__dict__["_source"] = None

    def read_later(self, source: Callable[[], Mapping[str, Any]]) -> None:
        """Take settings from an object when one is first asked for."""
        self.__dict__["_source"] = source

    def _all(self) -> dict[str, Any]:
        source = self.__dict__["_source"]
        if source is not None:
            self.__dict__["_source"] = None
            given = self.__dict__["_values"]
            self.__dict__["_values"] = {}
            try:
                self.update(source())
            except BaseException:
                self.__dict__["_source"] = source
                raise
            finally:
                self.__dict__["_values"] |= given
        found: dict[str, Any] = self.__dict__["_values"]
        return found

    def __getitem__(self, key: str) -> Any:
        values = self._all()
        if key in values:
            return values[key]
        if key not in DEFAULTS:
            raise unknown(key)
        if isinstance(DEFAULTS[key], dict):  # beat_schedule["name"] = {...}
            values[key] = {}
            return values[key]
        return DEFAULTS[key]

    def __setitem__(self, key: str, value: Any) -> None:
        values = self.__dict__["_values"]
        values[key] = checked(key, value, values)

    def __delitem__(self, key: str) -> None:
        del self._all()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(DEFAULTS)

    def __len__(self) -> int:
        return len(DEFAULTS)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in DEFAULTS:
            raise AttributeError(str(unknown(name)))
        return self[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __repr__(self) -> str:
        return f"<Conf {sorted(self._all())}>"

    # -- what is asked of it ----------------------------------------------------------------------

    def route(self, name: str, args: object, kwargs: object, options: object) -> dict[str, Any]:
        """Return the options that `task_routes` has for a task."""
        for pattern, route in _routes(self["task_routes"]):
            if callable(pattern):
                found = pattern(name, args, kwargs, options)
            else:
                found = route if fnmatch.fnmatchcase(name, pattern) else None
            if found is not None:
                return _checked_route(found)
        return {}


def unknown(key: str) -> NotSupported:
    """Return what refuses a setting that qframe has no counterpart of."""
    known = [each for each in _REFUSED if key.startswith(each)]
    if known:
        return refused(f"setting {key}", _REFUSED[max(known, key=len)])
    return NotSupported(
        f"qframe.celery has no setting {one_line(key, 60)}{nearest(key, DEFAULTS)}; "
        "docs/moving/celery.md lists those it has"
    )


def checked(key: str, value: Any, beside: Mapping[str, Any]) -> Any:
    """Return the value of a setting. Raises `NotSupported` or `ImproperlyConfigured`."""
    if key not in DEFAULTS:
        raise unknown(key)
    if key in _ALWAYS and not _ALWAYS[key][0](value):
        shown = one_line(repr(value), 60)
        raise NotSupported(refusal(f"{key} = {shown}", _ALWAYS[key][1]))
    if key in {"broker_url", "result_backend"} and value:
        value = _url(key, value)
        broker.settings_of(value, key)
        both = {**beside, key: value}
        if both.get("broker_url") and both.get("result_backend"):
            _check_results(both["result_backend"], both["broker_url"])
    if key == "task_routes" and value:
        for pattern, route in _routes(value):
            if not callable(pattern):
                _checked_route(route)
    return value


def _url(key: str, value: object) -> str:
    if isinstance(value, list | tuple) and len(value) == 1:
        (value,) = value
    if not isinstance(value, str):
        raise NotSupported(refusal(f"{key} of several URLs", "sentinels or nodes in qframe.toml"))
    return value


def _check_results(results: str, url: str) -> None:
    if not broker.same_server(results, url):
        raise NotSupported(
            "qframe.celery has no result_backend apart from the broker: results are kept beside "
            "the jobs; leave result_backend out"
        )
    if results != url:
        log.warning("results are kept beside the jobs, not in another database of that server")


def _routes(given: Any) -> Iterator[tuple[Any, Any]]:
    """Iterate over routes: a pattern and its options, or a function."""
    if given is None:
        return
    if isinstance(given, Mapping):
        yield from given.items()
    elif isinstance(given, str):
        yield _function(given), None
    elif callable(given):
        yield given, None
    elif isinstance(given, Iterable):
        for each in given:
            if isinstance(each, list | tuple):
                yield each[0], each[1]
            else:
                yield from _routes(each)


def _function(path: str) -> Route:
    found: Route = named(path)
    return found


def _checked_route(route: Any) -> dict[str, Any]:
    found = {"queue": route} if isinstance(route, str) else dict(route)
    for key in found:
        if key not in {"queue", "priority"}:
            raise refused(f"{key} in task_routes", 'queue, as in {"app.*": {"queue": "slow"}}')
    return found


# -- configuration objects ------------------------------------------------------------------------


def values_of(source: Any, namespace: str | None) -> dict[str, Any]:
    """Return the settings of a module, an object, a dict, or what a path names.

    With a namespace, those that begin with it, such as `CELERY_TASK_ROUTES`; otherwise, those in
    lower case. Raises `NotSupported` for one without a counterpart.
    """
    found = named(source) if isinstance(source, str) else source
    names = list(found) if isinstance(found, Mapping) else dir(found)
    prefix = f"{namespace}_" if namespace else ""
    values = {}
    for name in names:
        if not name.startswith(prefix) or name.startswith("_"):
            continue
        value = found[name] if isinstance(found, Mapping) else getattr(found, name)
        if namespace:
            values[name.removeprefix(prefix).lower()] = value
        elif name.islower() and not isinstance(value, ModuleType) and not callable(value):
            values[name] = value
        elif name.isupper() and name.startswith(("CELERY", "BROKER_")):
            raise NotSupported(
                f"qframe.celery has no setting {name}: write it in lower case, or give "
                "config_from_object its namespace"
            )
    return values


def named(path: str) -> Any:
    """Return what a path names: `module`, `module:name` or `module.name`.

    Raises `ImproperlyConfigured`.
    """
    module, _, name = path.partition(":")
    try:
        if name:
            return getattr(importlib.import_module(module), name)
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError:
            above, _, name = module.rpartition(".")
            if not above:
                raise
            return getattr(importlib.import_module(above), name)
    except (ImportError, AttributeError) as error:
        shown = one_line(path, 80)
        raise ImproperlyConfigured(f"{shown!r} cannot be imported: {error}") from error
