"""One connection object in many threads, and across a fork."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from qframe.contracts import Capability
from tests.conformance.drivers import Bench
from tests.conformance.steps import at, body, drain

pytestmark = pytest.mark.needs(Capability.RESERVE)

ROOT = Path(__file__).resolve().parents[2]


def test_eight_threads_push_and_work_and_nothing_is_lost_or_doubled(bench: Bench) -> None:
    threads, each = 8, 40
    settled: list[str] = []
    errors: list[BaseException] = []
    pushing = threading.Barrier(threads)

    def push_and_work(number: int) -> None:
        queue = bench.queue
        try:
            pushing.wait(30)
            for index in range(each):
                queue.push_raw(body(f"{number}-{index}"))
                for job in queue.reserve(["default"], 3):
                    if queue.start(job):
                        job.delete()
                        settled.append(job.uuid)
        except BaseException as error:  # noqa: BLE001 (shown by the test)
            errors.append(error)
        finally:
            queue.close()

    running = [threading.Thread(target=push_and_work, args=(n,)) for n in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
    assert errors == []
    settled += drain(bench.queue)
    bench.forward(100)
    settled += drain(bench.queue)
    expected = Counter(f"{n}-{index}" for n in range(threads) for index in range(each))
    assert Counter(settled) == expected
    if Capability.SIZE in bench.queue.capabilities:
        assert bench.queue.sizes() == at()


def test_two_clients_work_one_queue_and_share_its_jobs(bench: Bench) -> None:
    names = [str(number) for number in range(120)]
    for name in names:
        bench.queue.push_raw(body(name))
    clients = [bench.client(), bench.client()]
    for client in clients:
        client.tell("drain", "default")
    drained = [raw for client in clients for raw in client.answer()]
    for client in clients:
        client.close()
    assert sorted(drained) == sorted(body(name) for name in names)


FORK = """
import os, sys, json, threading
from qframe import QueueManager

settings = json.loads(sys.argv[1])
queues = QueueManager(settings)
queue = queues.connection()
queue.push_raw('{"uuid": "parent 1"}')
{threads}
asked, ask = os.pipe()
told, tell = os.pipe()
pid = os.fork()
if pid == 0:
    try:
        queue.push_raw('{"uuid": "child 1"}')
        os.write(tell, b"1")
        assert os.read(asked, 1) == b"2", "the parent has closed its connection"
        queue.push_raw('{"uuid": "child 2"}')
        (job,) = queue.reserve(["default"])
        assert queue.start(job)
        assert job.uuid == "parent 1", job
        job.delete()
        os._exit(0)
    finally:
        os._exit(1)
assert os.read(told, 1) == b"1"
queue.push_raw('{"uuid": "parent 2"}')
{parent}
os.write(ask, b"2")
_, status = os.waitpid(pid, 0)
assert status == 0, status
found = []
while jobs := queue.reserve(["default"], 10):
    for job in jobs:
        assert queue.start(job)
        found.append(job.uuid)
        job.delete()
print(json.dumps(found))
"""

THREADS = """
def use():
    queue.size()
    threading.Event().wait()

for _ in range(3):
    threading.Thread(target=use, daemon=True).start()
"""


@pytest.mark.needs(Capability.DURABLE)
@pytest.mark.parametrize(
    "parent",
    ["", "queue.close()", 'queue.close(); queue.push_raw(\'{"uuid": "parent 3"}\')'],
    ids=["goes on", "closes", "closes and goes on"],
)
@pytest.mark.parametrize(
    "threads",
    [
        "",
        THREADS,
    ],
    ids=["alone", "with threads"],
)
def test_parent_and_forked_child_both_use_the_connection(
    bench: Bench, threads: str, parent: str
) -> None:
    settings = {
        "root": str(bench.folder),
        "default": "here",
        "connections": {"here": bench.connection()},
    }
    script = FORK.replace("{threads}", threads).replace("{parent}", parent)
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(settings)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = ["child 1", "parent 2", "child 2"]
    if "parent 3" in parent:
        expected.insert(2, "parent 3")
    assert json.loads(done.stdout) == expected
