"""What Celery has and qframe has not: refused by name, with what to use instead."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

from qframe.celery.exceptions import NotSupported
from qframe.payload.text import nearest

PACKAGE: Final = "qframe.celery"

MODULES: Final = {
    "app": "from qframe.celery import Celery, Task, shared_task",
    "backends": "nothing: results are kept beside the jobs",
    "beat": "app.conf.beat_schedule, which every worker runs",
    "bin": "the command qframe",
    "bootsteps": "a lifespan of the worker, or qframe.events",
    "concurrency": "qframe work --concurrency N, or --workers N",
    "contrib": "qframe.testing in tests, qframe.Chunk for batches, self.is_stopping of a Queueable",
    "events": "qframe.events, or qframe top and qframe web",
    "fixups": "nothing: qframe.django in INSTALLED_APPS",
    "loaders": "app.config_from_object",
    "local": "qframe.celery.current_app and current_task",
    "platforms": "qframe supervise, or a systemd unit",
    "security": "signing_key in qframe.toml",
    "task": "qframe.celery.Task and shared_task",
    "worker": "qframe.Worker, or the command qframe work",
}
"""Modules, with what to use instead."""

NAMES: Final = {
    "abstract": "qframe.celery.Task as the base of classes",
    "bugreport": "qframe check",
    "uuid": "uuid.uuid4",
}
"""Names of the package."""

SIGNALS: Final = {
    "after_setup_logger": "logging.config in the application",
    "after_setup_task_logger": "logging.config in the application",
    "beat_embedded_init": "events.WorkerStarting",
    "beat_init": "events.WorkerStarting",
    "heartbeat_sent": "qframe workers",
    "import_modules": "app.conf.imports",
    "setup_logging": "logging.config in the application",
    "task_internal_error": "the log of the worker",
    "task_received": "events.JobProcessing",
    "task_rejected": "events.JobFailed",
    "task_revoked": "events.AttemptCancelled and events.JobSkipped",
    "task_unknown": "events.JobFailed, with UnknownJob",
    "user_preload_options": "qframe.toml",
    "worker_before_create_process": "events.WorkerStarting",
}

OF_APP: Final = {
    "AsyncResult": "",
    "GroupResult": "the object that group(...).apply_async() gives",
    "Worker": "qframe.Worker, or the command qframe work",
    "WorkController": "qframe.Worker",
    "Beat": "app.conf.beat_schedule, which every worker runs",
    "amqp": "qframe.QueueManager().connection()",
    "annotations": "options of the tasks",
    "backend": "AsyncResult, or qframe.job_status",
    "bugreport": "qframe check",
    "connection": "qframe.QueueManager().connection()",
    "connection_for_read": "qframe.QueueManager().connection()",
    "connection_for_write": "qframe.QueueManager().connection()",
    "control": "qframe pause, resume, restart, cancel, workers and scale",
    "events": "qframe.events",
    "log": "logging",
    "pool": "qframe.QueueManager().connection()",
    "producer_pool": "qframe.QueueManager().connection()",
    "start": "the command qframe",
    "steps": "qframe.events",
    "user_options": "qframe.toml",
    "worker_main": "qframe.Worker, or the command qframe work",
    "set_current": "the app's own name: shared_task follows the app made last",
}

OF_TASK: Final = {
    "Request": "self.request",
    "Strategy": "qframe.middleware",
    "add_around": "qframe.middleware",
    "add_to_chord": "a chord with all its tasks, or qframe.batch",
    "add_trail": "app.conf.beat_schedule, chain, group and chord",
    "backend": "self.AsyncResult(id), or qframe.job_status",
    "rate_limit": "RateLimited of qframe.middleware, on a Queueable",
    "replace": "a chain, or a dispatch of the other task",
    "replace_in_chord": "a chain",
    "send_event": "qframe.events",
    "send_events": "nothing: qframe.events are always there",
    "signature_from_request": "self.signature(args, kwargs)",
    "start_strategy": "qframe.middleware",
    "subtask_from_request": "self.signature(args, kwargs)",
}

OF_RESULT: Final = {
    "as_list": "id",
    "as_tuple": "id",
    "build_graph": "qframe flow ID, or the page",
    "children": "the signature that was applied",
    "collect": "get()",
    "get_leaf": "get()",
    "graph": "qframe flow ID, or the page",
    "iterdeps": "qframe flow ID, or the page",
    "then": "a chain, or link=",
    "worker": "qframe.job_status(id).host",
    "restore": "the ids of its results",
    "save": "the ids of its results",
    "delete": "forget()",
    "iter_native": "get()",
    "join_native": "join()",
}


def refusal(what: str, instead: str) -> str:
    """Return the line that refuses something."""
    return f"qframe.celery has no {what}: use {instead}"


def refused(what: str, instead: str) -> NotSupported:
    """Return the exception that refuses something."""
    return NotSupported(refusal(what, instead))


def of_module(module: str, name: str, table: Mapping[str, str] = NAMES) -> Exception:
    """Return what a module raises for a name that it does not have.

    `from m import name` hides the message of an `AttributeError`, so what is known is an
    `ImportError`.
    """
    known = {**table, **MODULES} if table is NAMES else table
    if name in known:
        return ImportError(refusal(name, known[name]), name=f"{module}.{name}")
    return AttributeError(f"module {module!r} has no attribute {name!r}{nearest(name, known)}")


def of_object(kind: str, name: str, table: Mapping[str, str]) -> AttributeError:
    """Return what an object raises for an attribute that it does not have."""
    if name in table:
        return AttributeError(refusal(f"{kind}.{name}", table[name]))
    return AttributeError(f"{kind!r} object has no attribute {name!r}")


class _MissingModules(MetaPathFinder):
    """Says what to use instead of a module that is imported and not there."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 (the protocol's)
        target: ModuleType | None = None,  # noqa: ARG002 (the protocol's)
    ) -> ModuleSpec | None:
        """Find nothing. Raises `ImportError` for a module of Celery's."""
        if fullname.startswith(f"{PACKAGE}."):
            name = fullname.removeprefix(f"{PACKAGE}.").partition(".")[0]
            if name in MODULES:
                raise ImportError(refusal(f"module {name}", MODULES[name]), name=fullname)
        return None


def refuse_modules() -> None:
    """Let an import of such a module say what to use instead."""
    if not any(isinstance(each, _MissingModules) for each in sys.meta_path):
        sys.meta_path.append(_MissingModules())
