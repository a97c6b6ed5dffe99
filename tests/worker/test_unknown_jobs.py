"""Payloads that name no job of the project: no code runs, nothing is lost, the reason is clear."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.process import Finished, Project

pytestmark = [pytest.mark.on_redis_too, pytest.mark.on_beanstalkd_too]

CANARY = "from pathlib import Path\nPath({canary!r}).write_text(__name__)\n"
JOB = """
from qframe import Queueable
class Job(Queueable):
    def handle(self):
        Path({canary!r}).write_text("handled")
"""


def _payload(job: object, data: object = None, **more: object) -> str:
    return json.dumps({"uuid": f"u-{job}{data or ''}", "job": job, "data": data or {}, **more})


CASES: dict[str, tuple[str | bytes, str]] = {
    "not JSON": (b"hello there", "the payload is not JSON"),
    "empty": (b"", "the payload is not JSON"),
    "not UTF-8": (b"\xff\xfe{}", "the payload is not UTF-8"),
    "NUL": (b'{"job": "a\x00', "the payload is not JSON"),
    "a list": (b"[1, 2]", "not a JSON object but list"),
    "no job": (b'{"uuid": "u-no-job", "data": {}}', "no job name"),
    "job of the wrong type": (b'{"uuid": "u-int", "job": 7}', "no job name"),
    "os.system": (_payload("os.system", {"command": "touch canary"}), "not a job of this project"),
    "subprocess.Popen": (_payload("subprocess.Popen", {"args": "x"}), "not a job of this project"),
    "builtins.eval": (_payload("builtins.eval", {"source": "1"}), "not a job of this project"),
    "an attribute path": (_payload("jobs.os.system"), "not a job of this project"),
    "a method": (_payload("jobs.Note.handle"), "not a job of this project"),
    "a dunder": (_payload("jobs.__builtins__"), "not a job of this project"),
    "a class that is missing": (_payload("jobs.Missing"), "not a job of this project"),
    "a near miss": (_payload("jobs.Nots"), "did you mean 'jobs.Note'?"),
    "a class that is no job": (_payload("jobs.NotAJob"), "is not a job of this project"),
    "a plain function": (_payload("jobs.plain"), "not a job of this project"),
    "outside the root": (_payload("outside.Job"), "not a job of this project"),
    "a hidden folder": (_payload("hidden.Job"), "not a job of this project"),
    "a hidden folder by path": (_payload(".hidden.hidden.Job"), "not a job of this project"),
    "site-packages": (_payload("installed.Job"), "not a job of this project"),
    "the program itself": (_payload("__main__.Job"), "not a job of this project"),
    "a module that is run by an import": (_payload("script.Nothing"), "not a job of this project"),
    "no module": (_payload("Note"), "not a job of this project"),
    "a file name": (_payload("../jobs.Note"), "not a job of this project"),
    "control characters": (_payload("jobs.\x1b[31mNote\n"), "not a job of this project"),
    "a module that does not compile": (_payload("broken.Job"), "cannot be imported: SyntaxError"),
    "a module that raises": (_payload("raising.Job"), "cannot be imported: ZeroDivisionError"),
    "a module that exits": (_payload("exiting.Job"), "cannot be imported: SystemExit"),
    "a module that dispatches": (
        _payload("dispatching.Job"),
        "a job was dispatched while a worker imports the module",
    ),
    "PHP": (
        _payload(
            "Illuminate\\Queue\\CallQueuedHandler@call",
            {"commandName": "App\\Jobs\\X", "command": 'O:10:"App\\Jobs\\X":0:{}'},
        ),
        "PHP-serialized command, which only Laravel can run",
    ),
    "another method": (_payload("jobs.Note@other"), "asks for jobs.Note@other; use @handle"),
    "data of the wrong type": (_payload("jobs.Typed", {"number": "many"}), "Typed: number: "),
    "data that is missing": (_payload("jobs.Typed"), "Typed: number: Field required"),
    "data that is a list": (_payload("jobs.Typed", [1, 2]), "data is a list, not named fields"),
    "data that is text": (_payload("jobs.Typed", "hello"), "data is a str, not named fields"),
    "nested too deeply": (b"[" * 2000 + b"]" * 2000, "the payload"),
    "data nested too deeply": (
        b'{"uuid":"u-deep","job":"jobs.Typed","data":{"number":'
        + b"[" * 2000
        + b"]" * 2000
        + b"}}",
        "",
    ),
    "a huge name": (_payload("jobs." + "x" * 100_000), "not a job of this project"),
}


class Outcome:
    """What one worker made of all cases at once."""

    def __init__(self, project: Project, canaries: list[Path], finished: Finished) -> None:
        self.finished = finished
        self.records = {record.payload: record for record in project.failed()}
        self.ran = [path.name for path in canaries if path.exists()]
        self.notes = project.notes()
        self.left = project.sizes()


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    base = tmp_path_factory.mktemp("unknown")
    with Project(base / "app") as project:
        canaries: list[Path] = []

        def plant(file: Path, *, runs: bool = True, text: str = JOB) -> None:
            canary = base / f"canary-{file.stem}-{len(canaries)}"
            canaries.append(canary)
            file.parent.mkdir(parents=True, exist_ok=True)
            top = CANARY if runs else "from pathlib import Path\n"
            file.write_text((top + text).format(canary=str(canary)))

        plant(base / "elsewhere" / "outside.py")
        plant(project.root / ".hidden" / "hidden.py")
        plant(project.root / "site-packages" / "installed.py")
        plant(project.root / "script.py", text="")
        plant(project.root / "raising.py", runs=False, text=JOB + "1 / 0\n")
        plant(project.root / "exiting.py", runs=False, text=JOB + "raise SystemExit\n")
        plant(
            project.root / "dispatching.py",
            runs=False,
            text=JOB + "from qframe import dispatch\ndispatch(Job()).on_queue('behind').send()\n",
        )
        project.write("broken.py", "class Job(Queueable:\n")
        project.push("Note", {"word": "first"})  # so that the names of its module are known
        for payload, _ in CASES.values():
            project.queue.push_raw(payload)
        project.push("Note", {"word": "last"})
        folders = [base / "elsewhere", project.root / ".hidden", project.root / "site-packages"]
        path = ":".join(filter(None, [os.environ.get("PYTHONPATH"), *map(str, folders)]))
        worker = project.work("--stop-when-empty", environment={"PYTHONPATH": path})
        finished = worker.finished(60)
        made = Outcome(project, canaries, finished)
        assert project.sizes("behind").total == 0
        yield made


def test_the_worker_lives_and_runs_what_it_knows(outcome: Outcome) -> None:
    assert outcome.finished.code == 0
    assert "Traceback" not in outcome.finished.err
    assert [line[:2] for line in outcome.notes] == [["note", "first"], ["note", "last"]]
    assert outcome.ran == []
    assert outcome.left.total == 0
    assert len(outcome.records) == len(CASES)
    assert "\x1b" not in outcome.finished.out + outcome.finished.err


@pytest.mark.parametrize("case", CASES)
def test_it_ends_in_the_failed_store_with_its_bytes_and_a_reason(
    outcome: Outcome, case: str
) -> None:
    payload, reason = CASES[case]
    raw = payload.encode() if isinstance(payload, str) else payload
    record = outcome.records[raw]
    last = record.exception.rstrip().splitlines()[-1]
    assert reason in last
    assert len(last) < 700
    assert last.isprintable()
    assert record.attempts == 0
    assert record.uuid


@pytest.mark.embedded_only
def test_unknown_jobs_are_tried_again_before_they_fail(project: Project) -> None:
    """The name may be newer than this worker: the module appears while the job waits."""
    project.write(
        "qframe.toml",
        "unknown_job_delays = [0.5, 1]\n[connections.database]\ndriver = 'database'\n",
    )
    project.push("fresh.Job")
    worker = project.work()
    wait = "tried again in 0.5 s, it may be newer than this worker"
    from tests.support.process import wait_for

    wait_for(lambda: wait in worker.err, "the first refusal")
    project.write(
        "fresh.py",
        "from jobs import Queueable, note\nclass Job(Queueable):\n"
        "    def handle(self):\n        note('ran', self.attempts)\n",
    )
    assert project.wait_for_note("ran")[1] == "1", "a refusal is no attempt"
    assert worker.stop() == 0
    assert project.failed() == []


@pytest.mark.parametrize("suffix", ["@handle", "@fire"])
@pytest.mark.slow
def test_laravels_method_suffix_is_accepted(project: Project, suffix: str) -> None:
    project.push(f"jobs.Note{suffix}")
    project.drain()
    assert len(project.notes("note")) == 1


@pytest.mark.slow
def test_unknown_keys_in_data_are_left_out_with_one_warning(project: Project) -> None:
    for _ in range(3):
        project.push("Note", {"word": "kept", "removed": [1]})
    finished = project.drain()
    assert [line[1] for line in project.notes("note")] == ["kept"] * 3
    assert finished.err.count("Note has no field 'removed': it is left out") == 1


@pytest.mark.slow
def test_php_writes_no_fields_as_a_list(project: Project) -> None:
    project.queue.push_raw('{"job": "jobs.Note", "data": []}')
    project.drain()
    assert len(project.notes("note")) == 1


def test_with_jobs_only_these_modules_run(project: Project) -> None:
    body = "from qframe import Queueable\nimport {module}\nclass Job(Queueable):\n{name}"
    handle = "    def handle(self):\n        from jobs import note\n        note('ran', __name__)\n"
    for module in ("listed/__init__.py", "listed/deep/__init__.py", "listed/deep/more.py"):
        project.write(module, body.format(module="os", name=handle))
    project.write("unlisted.py", body.format(module="os", name=handle))
    project.write("listed_too.py", body.format(module="os", name=handle))
    project.write(
        "named.py",
        body.format(module="os", name="    job_name = 'App\\\\Jobs\\\\Named'\n" + handle),
    )
    project.configure('jobs = ["listed", "named"]\n')
    known = ["listed.Job", "listed.deep.Job", "listed.deep.more.Job", "App\\Jobs\\Named"]
    unknown = ["unlisted.Job", "listed_too.Job", "jobs.Note", "named.Nothing"]
    for name in [*known, *unknown]:
        project.queue.push_raw(_payload(name))
    project.drain()
    assert sorted(line[1] for line in project.notes("ran")) == [
        "listed", "listed.deep", "listed.deep.more", "named",
    ]  # fmt: skip
    assert project.notes("note") == []
    reasons = {record.uuid: record.exception for record in project.failed()}
    assert set(reasons) == {f"u-{name}" for name in unknown}
    for name in ("unlisted.Job", "listed_too.Job", "jobs.Note"):
        assert "is not in the modules listed under `jobs`" in reasons[f"u-{name}"]
    assert project.empty()


@pytest.mark.on_redis_in_ci
def test_raw_bytes_survive_failing_and_retrying(project: Project) -> None:
    raws: list[bytes] = [
        bytes(range(256)),
        b'{"job": 1.10, "e": [], "big": 1180591620717411303424}',
    ]
    for raw in raws:
        project.queue.push_raw(raw)
    for _ in range(2):
        project.drain()
        assert sorted(record.payload for record in project.failed()) == raws
        assert project.qframe("retry", "all").code == 0
        assert project.failed() == []


@pytest.mark.slow
def test_the_failed_command_shows_hostile_names_harmlessly(project: Project) -> None:
    project.queue.push_raw(_payload("jobs.\x1b]0;owned\x07\u202eevil"))
    project.drain()
    for command in (["failed"], ["failed", project.failure().uuid]):
        told = project.qframe(*command)
        assert told.code == 0, told.err
        assert not {"\x1b", "\x07", "\u202e"} & set(told.out)
