"""BackgroundConnection: runs each job in a process of its own, started by its dispatch."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import sys
from collections import deque
from typing import IO, TYPE_CHECKING

from qframe import forks, manager
from qframe.config import Settings
from qframe.contracts.step import Push
from qframe.dispatch.sync import SyncConnection
from qframe.drivers import heartbeat
from qframe.drivers.sync import BackgroundBackend
from qframe.exceptions import BackendUnavailable, ConfigurationError
from qframe.jobs.definition import JobDefinition
from qframe.manager import connection_types

if TYPE_CHECKING:
    from subprocess import Popen

_DJANGO = "DJANGO_SETTINGS_MODULE"


class BackgroundConnection(SyncConnection):
    """Runs each job in a new process, which outlives this one.

    The job's chain runs there, too. There is one attempt; a failure is logged, and recorded as a
    failed job. If that process is killed, the job is lost. Raises `BackendUnavailable` if no
    process can be started, and `ConfigurationError` if it could not find the configuration.
    """

    runs_elsewhere = True

    def go_on(self, waiting: deque[Push], first: type[JobDefinition] | None = None) -> None:
        """Start a process for each job that a dispatch has pushed."""
        del first  # it finds the class by name
        for push in waiting:
            _start(self.name, push)

    def find_class(self, name: str) -> type[JobDefinition]:
        """Return the class of a job, as a worker finds it."""
        return manager.default().registry.find(name)


def _start(connection: str, push: Push) -> None:
    with forks.undisturbed():
        import subprocess  # noqa: PLC0415 (only who uses it pays)
        import tempfile  # noqa: PLC0415

    settings = manager.default().settings
    words = [sys.executable, "-m", "qframe.background"]
    try:
        with tempfile.TemporaryFile() as given:
            _write(given, connection, push)
            child = subprocess.Popen(  # noqa: S603 (this interpreter)
                words, stdin=given, env=_environment(settings), start_new_session=True
            )
    except OSError as error:
        unstarted = BackendUnavailable(f"no process for a job could be started: {error}")
        unstarted.in_doubt = False
        raise unstarted from error
    with contextlib.suppress(RuntimeError):  # while this process ends, which then leaves no zombie
        heartbeat.start_thread("qframe background", lambda: _wait(child))


def _wait(child: Popen[bytes]) -> None:
    """Wait for the process, which would be kept as a zombie otherwise."""
    child.wait()


def _write(file: IO[bytes], connection: str, push: Push) -> None:
    raw = base64.b64encode(push.raw).decode()
    asked = {"connection": connection, "queue": push.queue, "raw": raw}
    file.write(json.dumps(asked).encode())
    file.seek(0)


def _environment(settings: Settings) -> dict[str, str]:
    """Return the variables with which the process finds the same configuration and modules."""
    origin = settings.origin
    if origin.framework and _DJANGO not in os.environ:
        raise ConfigurationError(
            f"a background job runs in a process of its own, which cannot read {origin.framework}: "
            "put the configuration into a file"
        )
    path = os.pathsep.join(each for each in sys.path if each)
    found = {**os.environ, "PYTHONPATH": path}
    if origin.file is not None:
        found["QFRAME_CONFIG"] = str(origin.file)
    return found


connection_types[BackgroundBackend] = BackgroundConnection
