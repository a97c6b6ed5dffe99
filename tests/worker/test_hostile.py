"""What somebody who can only write to a queue may do to a worker: nothing but fill the failed."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from qframe import State, batch, chain, dispatch, find_batch, job_status, manager
from qframe.contracts.step import Push, Step
from tests.support.process import Project
from tests.test_harmless_logs import FORGED, HOSTILE, is_harmless
from tests.worker import killing

pytestmark = [
    pytest.mark.on_redis_too,
    pytest.mark.on_beanstalkd_too,
    pytest.mark.every_backend,
]

KEY = "a key that whoever writes there has not"


def put(project: Project, queue: str, *payloads: bytes) -> None:
    """Write to a queue as somebody else does: past what `push_raw` does for a job."""
    for raw in payloads:
        project.queue.backend.apply(Step(None, Push(queue, raw)))


# -- what is no text ------------------------------------------------------------------------------


def poison() -> dict[str, bytes]:
    """Give payloads with half a character in each key that names something, or no moment."""
    half = "x\ud800"
    lock = {"key": f"unique:{half}", "for": 60, "until": "handled"}
    wrong: dict[str, dict[str, Any]] = {
        "uuid": {"uuid": half},
        "display name": {"displayName": half},
        "job": {"job": f"jobs.{half}"},
        "unique": {"unique": lock},
        "debounce": {"debounce": {**lock, "key": f"debounce:{half}"}},
        "chain": {"chain": {"id": half}},
        "batch": {"batch": {"id": half, "n": 0}},
        "tags": {"tags": [half]},
        "tracked": {"uuid": half, "track": 60},
        "a key": {half: 1},
        "NUL": {"uuid": "a\0", "track": 60, "unique": {**lock, "key": "unique:\0"}},
        "no year": {"job": "jobs.Note", "retryUntil": -1e12},
        "long": {"uuid": "x" * 30_000, "track": 60, "chain": {"id": "x" * 20_000}},
    }
    plain = {"job": "jobs.Missing", "data": {}}
    return {
        name: json.dumps({"uuid": f"u-{name}", **plain, **keys}).encode()
        for name, keys in wrong.items()
    }


def test_what_is_no_text_is_failed_with_its_bytes_and_holds_up_nothing(project: Project) -> None:
    payloads = poison()
    put(project, "default", *payloads.values())
    project.push("Note", {"word": "behind"})
    worker = project.work("--json", "--stop-when-empty")
    assert worker.wait() == 0, worker.err
    assert [line[1] for line in project.notes("note")] == ["behind"]
    assert sorted(record.payload for record in project.failed()) == sorted(payloads.values())
    assert project.empty()
    said = [row["status"] for row in worker.rows]
    assert said.count("fail") == len(payloads)
    assert said.count("done") == 1
    assert said[-1] == "stopped"
    assert "Traceback" not in worker.err
    listed = project.qframe("failed", "--json")
    assert listed.code == 0, listed.err
    assert len(json.loads(listed.out)) == len(payloads)


# -- forged messages ------------------------------------------------------------------------------


def step(word: str, *, fails: bool = False) -> killing.Step:
    return killing.Step(scene="s", word=word, fails=fails)


def kept(project: Project) -> dict[str, str]:
    """Give all facts but those that workers tell of themselves."""
    ours = project.manager.connection().store.items("")
    return {key: value for key, value in ours if not key.startswith(("worker:", "metric:"))}


def test_a_forged_message_touches_nothing_that_it_names(project: Project) -> None:
    """It knows every name there is: of a chain, a batch, a lock, a status and a failed job."""
    shutil.copy(killing.__file__, project.root / "killing.py")
    project.configure(f'signing_key = "{KEY}"')
    manager.use(project.manager)
    try:
        failed = dispatch(step("fails", fails=True)).send()
        project.drain()
        victim = dispatch(killing.Only(scene="s", word="only")).track(60).send()
        chain([step("one"), step("two")]).catch(step("catch")).dispatch()
        own = batch([step("member")]).catch(step("catch")).then(step("then")).dispatch()
        before = kept(project)
        messages = forged(project, victim, failed)
        put(project, "other", *messages)
        worker = project.work("--queue", "other", "--stop-when-empty")
        assert worker.wait() == 0
        assert "InvalidSignature" in worker.out
        assert kept(project) == before
        records = project.failed()
        (record,) = [each for each in records if each.uuid == failed]
        assert "for good" in record.exception
        assert len(records) == 1 + len(messages)
        assert dispatch(killing.Only(scene="s", word="again")).is_duplicate
        found = find_batch(own.id)
        assert found is not None
        assert (found.is_cancelled, found.done, found.failed) == (False, 0, 0)
        project.drain()
        status = job_status(victim)
        assert status is not None
        assert status.state is State.COMPLETE
    finally:
        manager.use(None)
    words = [line[2] for line in project.notes("S")]
    assert sorted(words) == ["fails", "member", "one", "only", "then", "two"]


def forged(project: Project, victim: str, failed: str) -> list[bytes]:
    """Give messages like those that wait, unsigned, and one that asks for another queue."""
    (chains,) = {key.split(":")[1] for key in kept(project) if key.startswith("chain:")}
    batches = project.queue.batches()
    assert batches is not None
    (own,) = batches.all()
    lock = next(key for key in kept(project) if key.startswith("unique:"))
    debounce = lock.replace("unique", "debounce")
    wrong: list[dict[str, Any]] = [
        {"uuid": failed},
        {"uuid": victim, "track": 60, "unique": {"key": lock, "for": 60, "until": "handled"}},
        {"uuid": victim, "debounce": {"key": debounce, "for": 60}},
        {"uuid": "u", "chain": {"id": chains}},
        {"uuid": "u", "batch": {"id": own.id, "n": 0}},
        {"uuid": "u", "signature": "0" * 64},
    ]
    plain = {"job": "killing.Step", "data": {"scene": "s", "word": "forged", "fails": True}}
    return [json.dumps({**keys, **plain}).encode() for keys in wrong]


# -- what is shown --------------------------------------------------------------------------------


def test_no_payload_writes_to_a_terminal_or_a_line_of_its_own(project: Project) -> None:
    project.write(
        "hostile.py",
        "from qframe import Queueable\n"
        "class Says(Queueable):\n"
        "    job_name = 'tests.test_harmless_logs.Says'\n"
        "    text: str = ''\n"
        "    def handle(self): raise ValueError(self.text)\n",
    )
    project.configure('jobs = ["hostile"]')
    for queue in ("default", f"q{FORGED}" if project.queue.name == "database" else "other"):
        project.queue.backend.apply(*(Step(None, Push(queue, raw)) for raw in HOSTILE))
    worker = project.work("-v", "--stop-when-empty", "--tries", 1, "--queue", "*")
    worker.wait()
    shown = [worker.out, worker.err]
    for command in (("failed",), ("size",), ("status", f"u{FORGED}")):
        said = project.qframe(*command)
        shown += [said.out, said.err]
    assert all(map(is_harmless, shown))
    assert "ValueError" in worker.out
