"""`qframe init` and `qframe check`: a first project, and whether what is configured works."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from qframe import config as configuration
from qframe.alerts import channels
from qframe.console.connections import configured
from qframe.console.numbers import MANY, whole
from qframe.console.options import Config, ConnectionOption, Json
from qframe.console.payloads import lines_of
from qframe.console.person import person
from qframe.console.place import hint, origin_fields
from qframe.console.text import print_error, print_json, say
from qframe.exceptions import ConfigurationError
from qframe.manager import QueueManager
from qframe.metrics import version as versions
from qframe.operations import checkup, payload_reports, payloads, unsafe
from qframe.payload import encryption
from qframe.payload.text import one_line
from qframe.schedules.definition import Schedule
from qframe.schedules.schedulers import load

Payloads = Annotated[
    bool, typer.Option("--payloads", help="Also check all stored jobs with the code here.")
]
AtMost = Annotated[
    int, whole(MANY, "--at-most", help="Read so many jobs of each queue and place; 0: all.")
]
NoFailed = Annotated[bool, typer.Option("--without-failed", help="Leave out the failed jobs.")]
NoReport = Annotated[
    bool, typer.Option("--no-report", help="Keep no report of --payloads for the page.")
]
_NOT_CHECKED = ("payloads not checked, as the jobs cannot be imported",)
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


def init(folder: Annotated[Path, typer.Argument(help="The folder to write to.")] = Path()) -> None:
    """Create a commented qframe.toml and a first job; overwrites nothing.

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
            say(f"{path} already exists and was not changed")
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be written: {error.strerror}") from None
        else:
            say(f"wrote {path}")
    say("now: python jobs.py, then: qframe work")


def key() -> None:
    """Print a random key for encryption or signing.

    qframe key
    """
    say(encryption.new_key())


def check(
    *,
    connection: ConnectionOption = None,
    with_payloads: Payloads = False,
    at_most: AtMost = 0,
    without_failed: NoFailed = False,
    no_report: NoReport = False,
    as_json: Json = False,
    config: Config = None,
) -> int:
    """Check the configuration, its safety, and the backends.

    Exits 1 if a connection does not answer, a module of `jobs` or a middleware cannot be imported,
    or a schedule is wrong. A built-in connection that nobody configured or stores in may be down,
    or lack its package; that to AWS is not asked at all.

    With --payloads it also makes each job that waits, is delayed, failed, scheduled or kept, as its
    start would with the code here, and exits 1 if one cannot be run. Run it with the new code
    before a deploy. It changes no job, and writes only its report for the page.

      qframe check
      qframe check --config /etc/app/qframe.toml --json
      qframe check --payloads --without-failed
    """
    if not with_payloads and (at_most or without_failed or no_report):
        raise ConfigurationError("--at-most, --without-failed and --no-report are for --payloads")
    if at_most < 0:
        raise ConfigurationError("--at-most must not be negative: 0 reads all")
    queues = configured(config)
    if connection is not None:
        queues.settings.connection(connection)  # raises for an unknown one
    wanted = [connection] if connection else queues.settings.connection_names()
    trouble = ""
    planned: list[Schedule] = []
    try:
        queues.registry.load()
        queues.middleware()
        planned = load(queues)
    except ConfigurationError as error:
        trouble = str(error)
    used = {*checkup.in_use(queues), connection}
    rows = [checkup.checked(queues, name, is_used=name in used) for name in wanted]
    found, report = None, dict[str, str]()
    if with_payloads and not trouble:
        found, report = _tried(
            queues,
            connection,
            at_most,
            with_failed=not without_failed,
            keeps_report=not no_report,
        )
    if as_json:
        print_json(_facts(queues, rows, trouble, planned, found, report))
    else:
        _print(queues, rows, trouble)
        _print_schedules(planned)
        if with_payloads:
            _print_payloads(found, report)
    is_good = found is None or found.is_good
    return int(bool(trouble) or any(row["error"] for row in rows) or not is_good)


def _tried(
    queues: QueueManager,
    connection: str | None,
    at_most: int,
    *,
    with_failed: bool,
    keeps_report: bool,
) -> tuple[payloads.PayloadCheck, dict[str, str]]:
    """Checks all payloads. Returns what was found, and where its report is kept, or why not.

    The check is as good without a report.
    """
    found = payloads.check(queues, connection, at_most=at_most, failed=with_failed)
    if not keeps_report:
        return found, {}
    try:
        report = payload_reports.report_of(
            found,
            who=person(),
            where=payload_reports.COMMAND,
            version=versions.of(queues.settings),
            connection=connection or "",
            at_most=at_most,
            with_failed=with_failed,
        )
        return found, {"kept_by": payload_reports.keep(queues, report, found.silent), "trouble": ""}
    except Exception as error:  # noqa: BLE001 (a driver of others may raise anything)
        why = one_line(str(error) or type(error).__name__, 200)
        return found, {"kept_by": "", "trouble": why}


def _facts(
    queues: QueueManager,
    rows: list[dict[str, Any]],
    trouble: str,
    planned: list[Schedule],
    found: payloads.PayloadCheck | None,
    report: dict[str, str],
) -> dict[str, Any]:
    """Returns what `--json` prints."""
    settings = queues.settings
    facts = {"root": str(settings.root), **origin_fields(settings.origin)}
    facts |= {"ignored": [str(each) for each in settings.origin.ignored()]}
    facts |= {"connections": rows, "jobs": trouble or "ok"}
    bounds = {name: of.model_dump() for name, of in queues.settings.queues.items()}
    alerts: dict[str, Any] = {}
    if queues.settings.alerts.rules:
        alerts["rules"] = queues.settings.alerts.rules
        alerts["told"] = channels.by_name(queues.settings.alerts)
    more = {"queues": bounds, "alerts": alerts, "schedules": len(planned)}
    more["note"] = hint(settings.root, "work")
    more["payloads"] = None if found is None else found.model_dump()
    more["report"] = report
    return facts | {key: value for key, value in more.items() if value}


def _print_schedules(planned: list[Schedule]) -> None:
    if planned:
        say(f"schedules {len(planned)}")
    for each in planned:
        for warning in unsafe.of_schedule(each):
            say(f"warning  {warning.about}: {warning.text}")


def _print_payloads(found: payloads.PayloadCheck | None, report: dict[str, str]) -> None:
    for line in _NOT_CHECKED if found is None else lines_of(found):
        say(line)
    if report.get("trouble"):
        say(f"note     the report for the page was not kept: {report['trouble']}")


def _print_place(settings: configuration.Settings) -> None:
    say(f"root     {settings.root}")
    say(f"config   {settings.origin.described()}")
    for path in settings.origin.ignored():
        say(f"ignored  {path}: another configuration is read")
    if note := hint(settings.root, "work"):
        say(f"note     {note}")


def _print(queues: QueueManager, rows: list[dict[str, Any]], trouble: str) -> None:
    settings = queues.settings
    _print_place(settings)
    say(f"default  {settings.default}")
    say(f"jobs     {', '.join(settings.jobs) or 'any job defined under the root'}")
    for name, of in settings.queues.items():
        bounds = [f"{of.concurrency} at once over all workers"] * bool(of.concurrency)
        bounds += [f"{of.per_worker} in each worker"] * bool(of.per_worker)
        say(f"queue    {name}: {', '.join(bounds) or 'no bound'}")
    for rule in settings.alerts.rules:
        say(f"alert    {rule}")
    for channel, where in (
        channels.by_name(settings.alerts).items() if settings.alerts.rules else ()
    ):
        say(f"told     {channel}: {where}")
    for warning in unsafe.of_signing(queues):
        say(f"warning  {warning.about}: {warning.text}")
    for row in rows:
        name = row["connection"]
        if row["error"]:
            say(f"FAIL     {name}: {row['error']}")
        elif row["unused"]:
            say(f"unused   {name}: {row['unused']}")
        else:
            say(f"ok       {name}: {row['answer']} ({row['ms']} ms)")
        for text in row["warnings"]:
            say(f"warning  {name}: {text}")
    if trouble:
        print_error(trouble, 1)
