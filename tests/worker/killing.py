"""Workers that die at each point of a settle, one fork each, in the projects of the tests.

`test_chains` and `test_batches` copy this as their module `killing` and run it as a program:
`python killing.py WHAT` dispatches WHAT of `SCENES` again and again, each time to a queue of its
own, and works that in a fork which kills itself before the first, the second, the third call of its
backend that follows a job's `armed()`; until one gets by. Then it works what they left, and prints
how many had died, and how many jobs are left.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from qframe import Queueable, Worker, WorkerOptions, batch, chain, dispatch, manager
from qframe.contracts.backend import Backend
from qframe.drivers.ordered import OrderedBackend
from qframe.features import batch_jobs
from qframe.features.reserved import ReservedJob
from qframe.worker.settler import Settler

_ledger = os.open(os.environ.get("LEDGER", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
_MOST = 200
"""So many calls no settle needs."""
_PATIENCE = 60.0
_QUIET = 20
"""Looks for jobs that find none before nothing is left, if jobs may be on their way."""
_doom = SimpleNamespace(calls=0, left=None, of="")
"""Before which call this process dies, 0 for none; how many are left; of which job, once armed."""


def note(*words: object) -> None:
    """Add a line to the ledger, in one write."""
    os.write(_ledger, (" ".join(map(str, words)) + "\n").encode())


def armed(job: Queueable) -> None:
    """Let the calls be counted from here on, until this job is settled."""
    if _doom.calls and not _doom.of:
        _doom.left, _doom.of = _doom.calls, job.job.uuid


class Step(Queueable):
    """Leaves a line as it begins and one as it ends: `scene` is the queue, `word` which it is."""

    scene: str
    word: str
    arms: bool = False
    fails: bool = False

    job_name = "killing.Step"
    tries = 0

    def handle(self) -> None:
        note("S", self.scene, self.word, self.job.uuid)
        note("D", self.scene, self.word, self.job.uuid)
        if self.arms:
            armed(self)
        if self.fails:
            self.fail("for good")


class Only(Step):
    """The same, of which there may be one."""

    job_name = "killing.Only"
    unique = True

    def unique_id(self) -> str:
        return self.scene


# -- what is dispatched ---------------------------------------------------------------------------


def _step(scene: str, word: str, *, arms: bool = False, fails: bool = False) -> Step:
    return Step(scene=scene, word=word, arms=arms, fails=fails)


def _in_a_chain(scene: str) -> None:
    """Die as the first of three links is settled."""
    links = [_step(scene, "a", arms=True), _step(scene, "b"), _step(scene, "c")]
    chain(links).on_queue(scene).dispatch()


def _at_its_end(scene: str) -> None:
    """Die as the last link is settled, of a chain that is a member of a batch."""
    made = batch([[_step(scene, "a"), _step(scene, "b", arms=True)]]).on_queue(scene)
    made.then(_step(scene, "then")).finally_(_step(scene, "finally")).dispatch()


def _of_a_failure(scene: str) -> None:
    """Die as a link fails for good."""
    made = chain([_step(scene, "a", arms=True, fails=True), _step(scene, "b")]).on_queue(scene)
    made.catch(_step(scene, "catch")).dispatch()


def _of_a_member(scene: str) -> None:
    """Die as the last member of a batch is settled."""
    made = batch([_step(scene, "a"), _step(scene, "b", arms=True)]).on_queue(scene)
    made.then(_step(scene, "then")).finally_(_step(scene, "finally")).dispatch()


def _of_a_failed_member(scene: str) -> None:
    """Die as a member fails, and cancels its batch."""
    made = batch([_step(scene, "a", arms=True, fails=True), _step(scene, "b")]).on_queue(scene)
    made.catch(_step(scene, "catch")).then(_step(scene, "then"))
    made.finally_(_step(scene, "finally")).dispatch()


def _in_telling(scene: str) -> None:
    """Die as what follows a batch is dispatched."""
    made = batch([_step(scene, "a")]).on_queue(scene).progress(_step(scene, "progress"))
    made.then(_step(scene, "then"), _step(scene, "then2")).finally_(_step(scene, "finally"))
    made.dispatch()


def _in_beginning(scene: str) -> None:
    """Die as a batch begins that is a link of a chain."""
    inner = batch([_step(scene, "m1"), [_step(scene, "m2"), _step(scene, "m3")]])
    inner.before(_step(scene, "before")).then(_step(scene, "then"))
    chain([_step(scene, "a"), inner, _step(scene, "z")]).on_queue(scene).dispatch()


def _in_going_on(scene: str) -> None:
    """Die as a chain goes on behind a batch; the chain is itself a member of another."""
    inner = chain([batch([_step(scene, "m")]), _step(scene, "y"), _step(scene, "z")])
    batch([inner]).on_queue(scene).then(_step(scene, "then")).dispatch()


def _of_a_unique_job(scene: str) -> None:
    """Die as a unique job is settled."""
    dispatch(Only(scene=scene, word="a", arms=True)).on_queue(scene).send()


def _of_a_unique_failure(scene: str) -> None:
    """Die as a unique job fails for good."""
    dispatch(Only(scene=scene, word="a", arms=True, fails=True)).on_queue(scene).send()


SCENES: dict[str, tuple[Callable[[str], None], str]] = {
    "chain": (_in_a_chain, ""),
    "end": (_at_its_end, ""),
    "failure": (_of_a_failure, ""),
    "member": (_of_a_member, ""),
    "failed-member": (_of_a_failed_member, ""),
    "telling": (_in_telling, "RunBatchCallbacks"),
    "beginning": (_in_beginning, "StartBatch"),
    "going-on": (_in_going_on, "RunBatchCallbacks"),
    "unique": (_of_a_unique_job, ""),
    "unique-failure": (_of_a_unique_failure, ""),
}
"""What can be dispatched, and the job of qframe's own that arms, where none of ours does."""


# -- dying ----------------------------------------------------------------------------------------


def _count() -> None:
    """Take one of the calls that are left, or die before it."""
    if _doom.left is None or threading.current_thread() is not threading.main_thread():
        return
    _doom.left -= 1
    if not _doom.left:
        os.kill(os.getpid(), signal.SIGKILL)


def _counting(owner: type, *names: str) -> None:
    for name in names:
        plain = getattr(owner, name)

        def call(self: Any, *args: Any, _plain: Any = plain, **more: Any) -> Any:
            _count()
            return _plain(self, *args, **more)

        setattr(owner, name, call)


def _arming(owner: Any) -> None:
    plain = owner.handle

    def handle(self: Any) -> None:
        armed(self)
        plain(self)

    owner.handle = handle


_CALLS: dict[str, list[tuple[str, str, tuple[str, ...]]]] = {
    "database": [("connection", "Session", ("run", "run_many", "commit"))],
    "redis": [("connection", "RedisConnection", ("ask", "ask_all", "send"))],
    "beanstalkd": [("connection", "BeanstalkdConnection", ("exchange",))],
    "rabbitmq": [
        ("publisher", "Publisher", ("publish",)),
        ("consumer", "Consumer", ("get", "acknowledge")),
    ],
}
"""What goes to the server: of which module of a driver, of which class, by which methods."""


def _install(arms: str) -> None:
    backend = manager.default().connection().backend
    parts = {backend}
    if isinstance(backend, OrderedBackend):
        parts = {backend.messages, backend.facts, backend.failed}
    for package in {_package(part) for part in parts}:
        for module, name, calls in _CALLS[package.rpartition(".")[2].removeprefix("new_")]:
            _counting(getattr(importlib.import_module(f"{package}.{module}"), name), *calls)
    _ending(ReservedJob, "_conclude", lambda job, *_: [job])
    _ending(Settler, "_on_ends", lambda _, ends, *__: [each.job for each in ends])
    if arms:
        _arming(getattr(batch_jobs, arms))


def _package(backend: Backend) -> str:
    return type(backend).__module__.rpartition(".")[0]


def _ending(owner: type, name: str, jobs: Callable[..., list[ReservedJob]]) -> None:
    """Count the point behind the last call of a job's settle."""
    plain = getattr(owner, name)

    def ended(*args: Any) -> Any:
        given = plain(*args)
        if _doom.of in {job.uuid for job in jobs(*args)}:
            _count()
            _doom.left = None
        return given

    setattr(owner, name, ended)


def _work(*queues: str) -> int:
    return Worker(
        manager.default(), WorkerOptions(queues=queues, stop_when_empty=True, memory=0)
    ).run()


def _worked(what: str, count: int) -> int:
    """Dispatch it and work it in a fork that dies before a call; gives how that ended."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    dispatched, arms = SCENES[what]
    scene = f"{what}-{count}"
    dispatched(scene)
    _doom.calls = count
    _install(arms)
    os._exit(_work(scene))


def _left(*queues: str) -> int:
    queue = manager.default().connection()
    return sum(queue.size(name) for name in queues)


def _work_all(*queues: str) -> int:
    """Work until nothing is left, and give what is all the same.

    Where a server cannot count what is reserved, that of the last dead worker may be yet to come.
    """
    until = time.monotonic() + _PATIENCE
    unknown = "reserved" in manager.default().connection().sizes().unknown
    looks = quiet = _QUIET if unknown else 1
    while looks and time.monotonic() < until:
        looks -= 1
        if _left(*queues):
            _work(*queues)
            looks = quiet
        time.sleep(0.05)
    return _left(*queues)


def main() -> None:
    """Let them die until one lives, then do what they left."""
    what = sys.argv[1]
    sys.modules["killing"] = sys.modules["__main__"]
    SCENES[what][0]("warm-up")
    _work("warm-up")  # what is imported and prepared here is not in each of them
    died = 0
    while (code := _worked(what, died + 1)) == -signal.SIGKILL and died < _MOST:
        died += 1
    left = _work_all(*(f"{what}-{number}" for number in range(1, died + 2)))
    for number in range(1, died + 2):  # no lock is left either
        again = Only(scene=f"{what}-{number}", word="a")
        left += dispatch(again).on_queue("after").is_duplicate
    print(died, code, left)


if __name__ == "__main__":
    main()
