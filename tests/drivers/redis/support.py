"""A project on a Redis, and what can become of a job, for the tests of the Redis driver."""

from __future__ import annotations

import json
import re
import socket
import threading
import uuid as uuids
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from qframe.contracts import Cancelling, FailedJob, NewBatch, Sizes, State
from qframe.drivers.base import BaseQueue
from qframe.drivers.redis.job import RedisJob
from qframe.exceptions import BackendUnavailable
from tests.support.process import Process, Project, wait_for
from tests.support.redis_server import RedisServer

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "redis.md"
SECRET = "s3same-open"
"""The password of every server that asks for one; no output may hold it."""


class RedisProject(Project):
    """A project whose default connection is `redis`; keyword arguments are that connection's."""

    def __init__(self, root: Path, toml: str = "", **connection: object) -> None:
        self._connection = connection
        super().__init__(root, toml)

    def configure(self, toml: str = "", **connection: object) -> None:
        """Write the configuration, with these settings over those it was made with."""
        self.close()
        values = {"driver": "redis", "retry_after": 5, **self._connection, **connection}
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
        (self.root / "qframe.toml").write_text(
            f'default = "redis"\nunknown_job_delays = [0, 0]\n{toml}\n[connections.redis]\n{lines}'
        )

    @property
    def queue(self) -> BaseQueue:
        """The connection in this process."""
        return self.manager.connection("redis")

    def failed(self) -> list[FailedJob]:
        """List the failed jobs, the first one first."""
        return list(self.manager.failed_store("redis").page(10_000))[::-1]

    def done(self) -> list[str]:
        """Give the words of the notes that were written, in order."""
        return [words[1] for words in self.notes("note")]


def lines_with(worker: Process, word: str) -> list[str]:
    """Give the lines a worker printed that hold a word."""
    return [line for line in worker.out.splitlines() if word in line]


def wait_for_line(worker: Process, word: str) -> str:
    """Wait until a worker has printed a line that holds a word, and give the first one."""
    return wait_for(lambda: lines_with(worker, word), f"{word!r} in the output")[0]


# -- rights ------------------------------------------------------------------------------------


def rights(extra: str = "") -> list[str]:
    """Give the rights of an ACL user as docs/redis.md lists them, with our password.

    `extra` is what is to be done, where a line lists further rights for that.
    """
    text = DOCUMENTATION.read_text().replace("\\\n", " ")
    (line,) = re.findall(r"ACL SETUSER qframe on (.*)", text)
    if extra:
        line += " " + re.findall(rf"^\| {extra} \| `(.*)` \|$", text, re.MULTILINE)[0]
    words = line.replace("\\|", "|").replace("'", "").replace("`", "").split()
    return [word.replace("PASSWORD", SECRET) for word in words]


# -- jobs ---------------------------------------------------------------------------------------


def body(uuid: str = "", **more: object) -> str:
    """Give a payload."""
    return json.dumps({"uuid": uuid or str(uuids.uuid4()), "job": "jobs.Note", "data": {}, **more})


def new_batch(identity: str = "b", **more: Any) -> NewBatch:
    """Give a batch about to be begun; `told` in the queue `tellers` tells of it."""
    given = {
        "name": "", "connection": "redis", "options": {}, "allows_failures": True,
        "progress_step": 0, "teller": body("told").encode(), "teller_uuid": "told",
        "teller_queue": "tellers", **more,
    }  # fmt: skip
    return NewBatch(identity, **given)


def push_member(queue: BaseQueue, name: str, batch: str, number: int, **more: Any) -> str:
    """Push a job that is a member of a batch, and give its uuid."""
    return queue.push_raw(body(batch={"id": batch, "n": number}, **more), name)


def push(queue: BaseQueue, name: str = "emails", delay: float = 0) -> str:
    """Push a job and give its uuid."""
    return queue.push_raw(body(), name, delay)


def take(queue: BaseQueue, *names: str) -> RedisJob:
    """Reserve the one job there is to take."""
    (job,) = take_all(queue, 1, *names)
    return job


def take_all(queue: BaseQueue, limit: int, *names: str) -> list[RedisJob]:
    """Reserve as many jobs as there are to take."""
    jobs = queue.reserve(names or ("emails",), limit)
    return [job for job in jobs if isinstance(job, RedisJob)]


def begin(queue: BaseQueue, *names: str) -> RedisJob:
    """Reserve the one job there is to take, and start it."""
    job = take(queue, *names)
    assert queue.start(job)
    return job


def drain(queue: BaseQueue, *names: str) -> list[str]:
    """Run every job there is and give their uuids, in order."""
    done = []
    while jobs := queue.reserve(names or ("emails",), 10):
        for job in jobs:
            assert queue.start(job)
            assert job.attempts() == 1
            done.append(job.uuid)
            job.delete()
    return done


def live(queue: BaseQueue, name: str = "emails") -> None:
    """Take jobs through everything that can become of one; leaves nothing behind."""
    first, second, late = push(queue, name), push(queue, name), push(queue, name, delay=60)
    assert queue.sizes(name) == Sizes(ready=2, delayed=1)
    assert queue.queues() == [name]
    one, other = queue.reserve([name], 2)
    assert [one.uuid, other.uuid] == [first, second]
    assert queue.start(one)
    one.renew()
    assert queue.start(other, finished=one)
    other.release(60)
    assert queue.sizes(name) == Sizes(delayed=2)
    assert queue.reserve([name]) == []
    _live_through_its_end(queue, name)
    _live_in_groups(queue, name)
    _live_with_a_status(queue, name)
    _live_in_a_batch(queue, name)
    _live_in_the_stores(queue)
    _live_through_a_wait(queue, name)
    assert late
    assert queue.clear(name) == 2
    assert queue.queues() == []


def _live_through_its_end(queue: BaseQueue, name: str) -> None:
    failed = queue.own_failed_store()
    assert failed is not None
    uuid = push(queue, name)
    job = begin(queue, name)
    job.release()
    job = take(queue, name)
    job.give_back()
    job = begin(queue, name)
    assert job.attempts() == 2
    job.bury()
    assert queue.kick(name) == 1
    job = begin(queue, name)
    job.fail(ValueError("no"))
    record = failed.find(uuid)
    assert record is not None
    assert (record.attempts, [each.uuid for each in failed.page()]) == (3, [uuid])
    assert queue.requeue(record, record.payload, failed)
    begin(queue, name).fail(ValueError("no again"))
    failed.add(record)
    assert failed.count() == 1
    assert failed.page(after=uuid) == []
    assert failed.forget(uuid)
    assert failed.flush() == 0


def _live_with_a_status(queue: BaseQueue, name: str) -> None:
    statuses = queue.own_statuses()
    assert statuses is not None
    uuid = queue.push_raw(body(track=60), name)
    begin(queue, name).release(60)
    assert queue.cancel(uuid, name) is Cancelling.REMOVED
    found = statuses.read(uuid)
    assert found is not None
    # Where it is not noted in the same step, whoever cancels notes it.
    assert found.state is (State.CANCELLED if queue.noting else State.RELEASED)


def _live_in_a_batch(queue: BaseQueue, name: str) -> None:
    batches = queue.own_batches()
    assert batches is not None
    assert batches.create(new_batch("b", teller_queue=name))
    assert batches.grow("b", 2) == 0
    push_member(queue, name, "b", 0)
    push_member(queue, name, "b", 1)
    begin(queue, name).fail(ValueError("no"))
    begin(queue, name).delete()
    assert batches.seal("b") is not None
    assert batches.settle("b", 0, "u", failed=False) is not None
    batches.told("b", "then", progress=2)
    (record,) = batches.page(after="a")
    assert (record.done, record.failed, {*record.told}) == (2, 0, {"then"})
    assert batches.read("b") == record
    assert not batches.cancel("b")
    assert batches.failures("b") == []
    batches.told("b", "finally")
    assert batches.prune(record.created_at + 3600) == 1
    assert drain(queue, name) != []  # what was to tell of it
    assert queue.own_failed_store().flush() == 1  # type: ignore[union-attr]


def _live_through_a_wait(queue: BaseQueue, name: str) -> None:
    """One that something else ends."""
    told, tell = socket.socketpair()
    with told, tell:
        tell.send(b"x")
        queue.wait([name], 60, told.fileno())


def _live_in_groups(queue: BaseQueue, name: str) -> None:
    queue.put_groups([([(body(f"g{n}").encode(), f"g{n}")], name, 0) for n in range(2)])
    assert drain(queue, name) == ["g0", "g1"]
    queue.put_groups([([(body("g2").encode(), "g2")], name, 0)])
    assert drain(queue, name) == ["g2"]


def _live_in_the_stores(queue: BaseQueue) -> None:
    store = queue.own_store()
    assert store is not None
    store.set("a", "1", 60)
    assert store.add("b", "2")
    assert store.get("a", "b", "c") == ["1", "2", None]
    assert {"a", "b"} <= {*store.keys("")}  # beside what workers keep there
    assert store.delete("b", "2")
    assert store.delete("a")
    assert store.increment({"a": 2}, "b", "first step")
    assert store.delete("b")
    assert store.swap({"a": ("2", "3"), "b": (None, "1")}, 60)
    assert store.swap({"b": ("1", "1")}, 60)
    assert store.swap({"b": ("1", "1")})
    assert store.swap({"b": ("1", None)})
    assert store.delete("a")


# -- waiting ------------------------------------------------------------------------------------


class Waiting:
    """A thread in `wait` on queues; `ended` gives the seconds it took, or raises what it raised."""

    def __init__(self, queue: BaseQueue, names: Sequence[str], seconds: float) -> None:
        self._queue = queue
        self._names = names
        self._seconds = seconds
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._wait)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _wait(self) -> None:
        try:
            self._queue.wait(self._names, self._seconds)
        except Exception as error:  # noqa: BLE001 (the test asks for it)
            self.error = error
        finally:
            self._queue.close()

    def over(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()


# -- jobs under way while something breaks -------------------------------------------------------


def cut_off(master: RedisServer, replicas: Iterable[RedisServer]) -> None:
    """Let replicas hear no more of their master, and not know it."""
    for replica in replicas:
        replica.pause()
    master.command("CLIENT", "KILL", "TYPE", "replica")


class Producer:
    """A thread that pushes jobs one after the other; `accepted` are those that were taken."""

    def __init__(self, app: RedisProject, *names: str, pause: float = 0.005) -> None:
        self._queue = app.manager.connection("redis")
        self._names = names or ("default",)
        self._pause = pause
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._produce)
        self.accepted: list[str] = []
        self.refusals: list[str] = []
        self.surprises: list[Exception] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _produce(self) -> None:
        number = 0
        while not self._over.wait(self._pause):
            number += 1
            name = self._names[number % len(self._names)]
            message = body(job="jobs.Fault", data={"number": number, "seconds": 0.005})
            try:
                self._queue.push_raw(message, name)
            except BackendUnavailable as error:
                self.refusals.append(str(error))
            except Exception as error:  # noqa: BLE001 (the test asks for it)
                self.surprises.append(error)
            else:
                self.accepted.append(str(number))
        self._queue.close()

    def wait_for_refusal(self) -> None:
        """Wait until one more has been refused."""
        there = len(self.refusals)
        wait_for(lambda: len(self.refusals) > there, "a job to be refused")

    def wait_for_more(self, count: int = 30) -> None:
        """Wait until so many more have been taken."""
        there = len(self.accepted)
        wait_for(lambda: len(self.accepted) >= there + count, f"{count} more jobs to be taken")


def _is_back(worker: Process) -> bool:
    return len(lines_with(worker, " gone: ")) == len(lines_with(worker, " back after "))


def missing(app: RedisProject, accepted: list[str]) -> set[str]:
    """Give the jobs that were taken and are not done."""
    return set(accepted) - {words[1] for words in app.notes("D")}


def check_all_done(app: RedisProject, producer: Producer, workers: list[Process]) -> None:
    """No job is missing, and no worker had more to say than that its backend was away."""
    wait_for(lambda: not missing(app, producer.accepted), "every accepted job to be done", 60)
    assert producer.surprises == []
    assert app.failed() == []
    for worker in workers:
        wait_for(partial(_is_back, worker), "a worker to be back")
        assert worker.stop() == 0
        assert "Traceback" not in worker.err
