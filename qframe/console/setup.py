"""`qframe init` and `qframe check`: a first project, and whether what is configured works."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from qframe import config as configuration
from qframe.console import outbox
from qframe.console.connections import configured
from qframe.console.options import Config, Json
from qframe.console.text import say, say_error, say_json
from qframe.contracts.backend import Capability
from qframe.exceptions import BackendUnavailable, ConfigurationError, QframeError
from qframe.manager import QueueManager
from qframe.payload import encryption

_SHORT_LEASE = 3

_TOML = """\
# qframe: the settings one changes first, with their defaults.
default = "database"

# The only modules whose jobs a worker runs, imported when it starts.
jobs = ["jobs"]

[connections.database]
driver = "database"
url = "sqlite:///qframe.sqlite3"    # a path relative to this file
# url = "postgresql://app@localhost/app"    # or mariadb://...; then: qframe migrate
queue = "default"                   # where jobs go that name no queue
retry_after = 60                    # a killed worker's job runs again after this many seconds

# Functions that hear events: "module:function".
# [listeners]
# JobFailed = ["jobs:tell_me"]
"""

_JOBS = '''\
"""The jobs of this project."""

from qframe import Queueable, dispatch


class SayHello(Queueable):
    name: str

    queue = "default"
    tries = 3
    backoff = (1, 5, 10)

    def handle(self) -> None:
        print(f"Hello, {self.name}!")


if __name__ == "__main__":
    job_id = dispatch(SayHello(name="world")).send()
    print(f"queued {job_id}")
'''


def init(folder: Annotated[Path, typer.Argument(help="Where to.")] = Path()) -> None:
    """Write a commented qframe.toml and a first job, jobs.py; nothing is overwritten.

    qframe init
    qframe init backend
    """
    for name, text in ((configuration.FILE, _TOML), ("jobs.py", _JOBS)):
        path = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            if not folder.is_dir():
                raise ConfigurationError(f"{folder} is not a folder") from None
            say(f"{path} is there already: left as it is")
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
        else:
            say(f"wrote {path}")
    say("now: python jobs.py, then: qframe work")


def key() -> None:
    """Print a new random key, for encryption_keys, signing_key or signing_keys.

    qframe key
    """
    say(encryption.new_key())


def check(*, as_json: Json = False, config: Config = None) -> int:
    """Say what is configured, whether each backend answers, and what is unsafe about it.

    Exit 1 when a connection does not answer, or a module of `jobs` or a middleware cannot be
    imported; a connection that is there without being configured may be silent.

      qframe check
      qframe check --config /etc/app/qframe.toml --json
    """
    queues = configured(config)
    rows = [_checked(queues, name) for name in queues.settings.connection_names()]
    trouble = ""
    try:
        queues.registry.load()
        queues.middleware()
    except ConfigurationError as error:
        trouble = str(error)
    if as_json:
        said = {"root": str(queues.settings.root), "connections": rows, "jobs": trouble or "ok"}
        bounds = {name: of.model_dump() for name, of in queues.settings.queues.items()}
        say_json(said | ({"queues": bounds} if bounds else {}))
    else:
        _print(queues, rows, trouble)
    return int(bool(trouble) or any(row["error"] for row in rows))


def _checked(queues: QueueManager, name: str) -> dict[str, Any]:
    row: dict[str, Any] = {"connection": name, "answer": "", "ms": None}
    row |= {"error": "", "unused": "", "warnings": []}
    settings = queues.settings
    try:
        queue = queues.connection(name)
        began = time.monotonic()
        health = queue.backend.check()
        row["answer"] = health.version
        row["ms"] = round((time.monotonic() - began) * 1000, 1)
        row["warnings"] = list(health.warnings)
        if name == settings.outbox.connection:
            row["warnings"] += outbox.warnings(queues)
        if Capability.RESERVE in queue.capabilities and queue.retry_after < _SHORT_LEASE:
            row["warnings"].append(
                f"retry_after = {queue.retry_after:g} is short: a job that holds the interpreter "
                "for as long keeps its lease from being renewed, and runs twice"
            )
    except BackendUnavailable as error:
        asked_for = name in settings.connections or name == settings.default
        row["error" if asked_for else "unused"] = str(error)
    except QframeError as error:
        row["error"] = str(error)
    return row


def _print(queues: QueueManager, rows: list[dict[str, Any]], trouble: str) -> None:
    settings = queues.settings
    say(f"root     {settings.root}")
    say(f"default  {settings.default}")
    say(f"jobs     {', '.join(settings.jobs) or 'any job defined under the root'}")
    for name, of in settings.queues.items():
        bounds = [f"{of.concurrency} at once over all workers"] * bool(of.concurrency)
        bounds += [f"{of.per_worker} in each worker"] * bool(of.per_worker)
        say(f"queue    {name}: {', '.join(bounds) or 'no bound'}")
    if queues.signer is not None and not queues.signer.require:
        say("warning  signing: payloads without a signature are accepted (accept-unsigned)")
    for row in rows:
        name = row["connection"]
        if row["error"]:
            say(f"FAIL     {name}: {row['error']}")
        elif row["unused"]:
            say(f"unused   {name}: {row['unused']}")
        else:
            say(f"ok       {name}: {row['answer']} ({row['ms']} ms)")
        for warning in row["warnings"]:
            say(f"warning  {name}: {warning}")
    if trouble:
        say_error(trouble, 1)
