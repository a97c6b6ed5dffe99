"""Workers and encrypted, signed and secret jobs, on every backend."""

from __future__ import annotations

import json
import re
import shutil
from typing import Any

import pytest

from qframe import Queueable, QueueManager, config
from qframe.payload import signature
from qframe.payload.encryption import new_key
from tests.support.marks import slow
from tests.support.process import Project
from tests.worker import sealed_jobs

pytestmark = pytest.mark.on_redis_too

KEY, OTHER = new_key(), new_key()
SIGNING = "the signing key of these tests"
VALUE = "hunter2-in-clear"


def use(
    project: Project, *, keys: list[str] | None = None, signed: str = "", more: str = ""
) -> None:
    """Configure keys; `sealed_jobs` is the module `sealed`."""
    shutil.copy(sealed_jobs.__file__, project.root / "sealed.py")
    lines = [f"encryption_keys = {json.dumps([KEY] if keys is None else keys)}", more]
    if signed:
        lines.append(f"signing_key = {signed!r}")
    project.configure("\n".join(lines))


def push(project: Project, job: str, *, delay: float = 0, queue: str = "default") -> str:
    """Push a job of the module."""
    made: Queueable = getattr(sealed_jobs, job)(token=VALUE)
    return project.queue.later(delay, made, queue)


def everything(project: Project) -> str:
    """Give all that is stored and was printed."""
    kept = [record.payload.decode() + record.exception + record.name for record in project.failed()]
    said = [process.out + process.err for process in project.processes]
    return "\n".join([*kept, *said])


def taken(project: Project) -> bytes:
    """Take the one job that waits, and give its payload."""
    (job,) = project.queue.reserve(["default"], 10)
    job.delete()
    return job.raw_body


@pytest.mark.parametrize("how", [(), *slow(("--isolate",), ("--workers", 2))])
def test_an_encrypted_job_is_run_and_nowhere_to_be_read(
    project: Project, how: tuple[object, ...]
) -> None:
    use(project, signed=SIGNING)
    push(project, "Send")
    push(project, "Send", delay=0.2)
    worker = project.work(*how)
    project.wait_for_note("sent", count=2)
    worker.stop()
    assert project.notes("sent") == [["sent", VALUE[::-1]]] * 2
    assert not project.failed()
    assert VALUE not in everything(project)


@pytest.mark.slow
def test_what_waits_cannot_be_read(project: Project) -> None:
    use(project)
    push(project, "Send")
    raw = taken(project)
    assert VALUE.encode() not in raw
    assert list(json.loads(raw)["data"]) == ["encrypted"]


@pytest.mark.parametrize("how", [(), *slow(("--isolate",))])
def test_a_failure_shows_nothing_and_tells_the_job(
    project: Project, how: tuple[object, ...]
) -> None:
    use(project)
    uuid = push(project, "Fails")
    project.drain(*how)
    project.wait_for_note("told", VALUE[::-1])
    for command in (("failed",), ("failed", uuid), ("failed", uuid, "--json"), ("status", uuid)):
        assert VALUE not in project.qframe(*command).out
    assert VALUE not in everything(project)


@pytest.mark.slow
def test_a_retried_job_stays_encrypted_and_signed(project: Project) -> None:
    use(project, signed=SIGNING)
    uuid = push(project, "Fails")
    project.drain()
    assert project.qframe("retry", uuid).code == 0
    project.drain()
    assert len(project.notes("told")) == 2
    assert project.failure().uuid == uuid
    assert VALUE not in everything(project)


def test_an_attempt_that_failed_is_tried_again_and_what_it_dispatches_is_signed(
    project: Project,
) -> None:
    use(project, signed=SIGNING)
    push(project, "Again")
    project.drain()
    assert project.notes() == [["attempt", "1"], ["attempt", "2"], ["sent", VALUE[::-1]]]


@pytest.mark.parametrize("keys", [[], *slow([OTHER])])
def test_a_missing_key_fails_the_job_and_a_retry_with_it_succeeds(
    project: Project, keys: list[str]
) -> None:
    use(project)
    uuid = push(project, "Send")
    use(project, keys=keys)
    project.drain("--tries", 5)
    record = project.failure()
    assert record.uuid == uuid
    (why,) = record.exception.strip().splitlines()[-1:]
    assert "CannotDecrypt: sealed.Send" in why
    assert "encryption_keys" in why
    assert record.attempts == 0
    sent = json.loads(record.payload)
    assert list(sent["data"]) == ["encrypted"]
    use(project, keys=[OTHER, KEY])
    assert project.qframe("retry", uuid).code == 0
    project.drain()
    assert project.notes() == [["sent", VALUE[::-1]]]


@pytest.mark.slow
def test_a_class_that_was_not_encrypted_before_takes_what_waits(project: Project) -> None:
    use(project)
    project.push("sealed.Send", {"token": VALUE})
    project.drain()
    assert project.notes() == [["sent", VALUE[::-1]]]


def test_a_secret_is_shown_nowhere_but_stays_in_the_payload(project: Project) -> None:
    use(project)
    uuid = push(project, "Hides")
    project.drain()
    record = project.failure()
    assert json.loads(record.payload)["data"] == {"token": VALUE}
    assert "RuntimeError: no **********" in record.exception
    for command in (("failed",), ("failed", uuid), ("failed", uuid, "--json"), ("status", uuid)):
        said = project.qframe(*command)
        assert said.code == 0
        assert VALUE not in said.out + said.err
    (shown,) = [json.loads(project.qframe("failed", uuid, "--json").out)]
    assert json.loads(shown["payload"])["data"] == {"token": "**********"}
    assert all(VALUE not in process.out + process.err for process in project.processes)
    assert project.qframe("retry", uuid).code == 0
    project.drain()
    assert len(project.notes("hid")) == 2


# -- signatures ---------------------------------------------------------------------------------

TRAP = "from pathlib import Path\nPath({canary!r}).touch()\nfrom sealed import Send\n"


def trapped(project: Project) -> Any:
    """Write a module that leaves a trace when it is imported."""
    canary = project.root / "imported"
    text = f"{TRAP.format(canary=str(canary))}class Trap(Send):\n    encrypted = False\n"
    project.write("trap.py", text)
    return canary


@pytest.mark.parametrize("how", [(), *slow(("--isolate",))])
def test_an_unsigned_payload_is_failed_unread(project: Project, how: tuple[object, ...]) -> None:
    use(project, signed=SIGNING)
    canary = trapped(project)
    uuid = project.push("trap.Trap", {"token": VALUE})
    project.drain(*how)
    record = project.failure()
    assert record.uuid != uuid, "a name of its own, not that of anybody's record"
    assert record.attempts == 0
    assert record.exception.strip().endswith('(signing = "accept-unsigned" takes such payloads)')
    assert not canary.exists()
    assert project.notes() == []
    refused = project.qframe("retry", record.uuid)
    assert refused.code == 1
    assert "is kept: the payload is not signed" in refused.err
    assert project.failure().payload == record.payload
    assert not canary.exists()


def test_neither_a_changed_payload_nor_one_of_another_queue_runs(project: Project) -> None:
    use(project, signed=SIGNING)
    push(project, "Hides")
    raw = taken(project)
    changed = raw.replace(VALUE.encode(), b"x" * len(VALUE))
    assert changed != raw
    project.queue.push_raw(changed, "default")
    project.drain()
    assert "the signature of the payload is wrong" in project.failure().exception
    assert project.qframe("retry", "all").code == 1
    assert project.qframe("flush").code == 0
    project.queue.push_raw(raw, "other")
    project.drain("--queue", "other")
    assert "signed for another queue than 'other'" in project.failure().exception
    assert project.notes() == []


@pytest.mark.slow
def test_what_was_taken_from_the_queue_is_the_very_bytes_that_were_signed(project: Project) -> None:
    use(project, signed=SIGNING)
    push(project, "Send", queue="a.b:c-d_e")
    project.drain("--queue", "a.b:c-d_e")
    assert project.notes() == [["sent", VALUE[::-1]]]


def test_a_retry_after_the_right_key_came_back_succeeds(project: Project) -> None:
    use(project, signed=SIGNING)
    push(project, "Send")
    use(project, signed="another key, which is wrong")
    project.drain()
    record = project.failure()
    assert "InvalidSignature" in record.exception
    use(project, signed="another key, which is wrong", more=f'signing_keys = ["{SIGNING}"]')
    assert project.qframe("retry", record.uuid).code == 0
    project.drain()
    assert project.notes() == [["sent", VALUE[::-1]]]


def test_during_the_transition_unsigned_payloads_run_and_wrong_ones_do_not(
    project: Project,
) -> None:
    use(project, signed=SIGNING, more='signing = "accept-unsigned"')
    project.push("sealed.Send", {"token": VALUE})
    push(project, "Send")
    signed = signature.Signer([SIGNING]).signed(
        b'{"uuid":"u-wrong","job":"sealed.Send","data":{"token":"x"}}', "other"
    )
    project.queue.push_raw(signed, "default")
    project.drain()
    assert project.notes() == [["sent", VALUE[::-1]]] * 2
    assert b"u-wrong" in project.failure().payload


def test_without_a_key_a_signed_payload_runs_but_is_not_changed_by_a_retry(
    project: Project,
) -> None:
    use(project, signed=SIGNING)
    uuid = push(project, "Fails")  # its status makes a retry change the payload
    use(project)
    project.drain()
    assert len(project.notes("told")) == 1
    refused = project.qframe("retry", uuid)
    assert refused.code == 1
    assert "no signing_key is configured here" in refused.err


# -- commands -----------------------------------------------------------------------------------


@pytest.mark.embedded_only
def test_the_command_prints_keys_that_serve(project: Project) -> None:
    first, second = project.qframe("key"), project.qframe("key")
    assert first.code == second.code == 0
    assert first.out != second.out
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}=\n", first.out)
    use(project, keys=[first.out.strip()], signed=second.out.strip())
    assert isinstance(QueueManager(config.load(project.root / "qframe.toml")), QueueManager)
    push(project, "Send")
    project.drain()
    assert project.notes() == [["sent", VALUE[::-1]]]


@pytest.mark.embedded_only
def test_a_worker_with_a_wrong_key_does_not_start(project: Project) -> None:
    use(project, keys=["short"])
    said = project.work("--stop-when-empty").finished()
    assert said.code == 2
    assert "encryption_keys.0" in said.one_line()
    assert "qframe key" in said.one_line()
    assert "short" not in said.one_line()
