"""What a backend can be asked to do, each with what must hold once it was done.

A fault is put before, or into the middle of, each of them by the tests. What holds afterwards shows
that the act was done, and done once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from qframe.contracts.backend import Backend
from qframe.contracts.queue import Sizes
from qframe.contracts.step import (
    Add,
    Arrive,
    Bury,
    Close,
    Delete,
    Expect,
    Extend,
    Forget,
    Open,
    Operation,
    Push,
    Raise,
    Record,
    Release,
    Renew,
    Reservation,
    Result,
    Set,
    Start,
    Step,
    Unset,
)
from qframe.exceptions import BackendUnavailable
from qframe.testing.conformance.steps import apply, drained, failed, push, reserve, started, tried
from tests.support.process import wait_for

Check = Callable[[], object]
"""Must be true once the act was done."""


@dataclass(frozen=True)
class Act:
    """`do` may be called again where it raised."""

    name: str
    do: Callable[[], object]
    check: Check


Make = Callable[[Backend, str], tuple[Callable[[], object], Check]]
"""Prepares an act in a queue, and with facts, of this name."""


def payload(number: int = 0) -> bytes:
    """Give a payload as qframe writes it, whose starts are counted in it."""
    text = json.dumps({"uuid": f"u{number}", "job": "app.Job", "data": {}})
    return f'{text[:-1]},"id":"{number}","attempts":0,"delay":null}}'.encode()


def ready(backend: Backend, queue: str) -> int:
    """Count what is ready in a queue that holds nothing else."""
    sizes = backend.sizes(queue)
    assert sizes == Sizes(sizes.ready)
    return sizes.ready


def comes_back(backend: Backend, queue: str, count: int = 1, attempts: int = 0) -> bool:
    """Whether so many are there in the end, each once, started so often."""
    found: list[Reservation] = []

    def all_there() -> bool:
        found.extend(backend.reserve([queue], 10)[0])
        return len(found) >= count

    wait_for(all_there, "what was held")
    there = [job.attempts for job in found]
    return there == [attempts] * count and not backend.reserve([queue])[0]


# -- pushes and facts: what needs memory -----------------------------------------------------------


def _apply(done: Callable[[Backend, str], bool], *operations: Callable[[str], Operation]) -> Make:
    """Apply one step about no reservation."""

    def make(backend: Backend, name: str) -> tuple[Callable[[], object], Check]:
        step = Step(None, *(each(name) for each in operations))

        def do() -> None:
            assert backend.apply(step)[0].applied

        return do, lambda: done(backend, name)

    return make


def _many(backend: Backend, name: str) -> tuple[Callable[[], object], Check]:
    queues = [name, f"{name}-other"]
    steps = [Step(None, Push(queues[n % 2], b"%d" % n)) for n in range(300)]

    def check() -> bool:
        raws = [job.raw_body for job in backend.reserve(queues, 400)[0]]
        return raws == [b"%d" % n for n in (*range(0, 300, 2), *range(1, 300, 2))]

    return lambda: backend.apply(*steps), check


def _extend(backend: Backend, name: str) -> tuple[Callable[[], object], Check]:
    apply(backend, None, Open(name, Push(name, b"then")))

    def check() -> bool:
        latch = backend.latch(name)
        return latch is not None and latch.size == 3

    return lambda: apply(backend, None, Extend(name, 3)), check


PUSHES: dict[str, Make] = {
    "push": _apply(comes_back, lambda n: Push(n, payload())),
    "later": _apply(lambda b, n: b.sizes(n) == Sizes(delayed=1), lambda n: Push(n, payload(), 60)),
    "odd-bytes": _apply(lambda b, n: drained(b, n) == [b"\xff"], lambda n: Push(n, b"\xff")),
    "many": _many,
    "locked-push": _apply(
        lambda b, n: b.read(n, f"{n}2") == ["1", "2"] and ready(b, n) == 1,
        lambda n: Expect(n, None),
        lambda n: Set(n, "1", 60),
        lambda n: Add(f"{n}2", 2),
        lambda n: Push(n, payload()),
    ),
    "raise": _apply(lambda b, n: b.read(n) == ["x"], lambda n: Raise(n, 1, "x", 60)),
    "extend": _extend,
}  # fmt: skip


# -- what becomes of jobs: done even when the memory is full ---------------------------------------


def _ending(send: Callable[[], Result]) -> Callable[[], None]:
    """Send the end of a reservation, again after an error, and decide on it as a worker does."""
    unanswered = False

    def do() -> None:
        nonlocal unanswered
        try:
            result = send()
        except BackendUnavailable as error:
            unanswered = unanswered or error.in_doubt
            raise
        assert result.of_end(unanswered=unanswered).applied, result

    return do


def _settle(done: Callable[[Backend, str], object], *ends: Operation) -> Make:
    """Do something with a started job, and with facts."""

    def make(backend: Backend, name: str) -> tuple[Callable[[], object], Check]:
        push(backend, payload(), queue=name)
        job = started(backend, name)
        return _ending(lambda: tried(backend, job, *ends)), lambda: done(backend, name)

    return make


def _reserve(backend: Backend, name: str) -> tuple[Callable[[], object], Check]:
    """What was reserved unheard comes back."""
    push(backend, payload(), queue=name)
    return lambda: backend.reserve([name]), lambda: comes_back(backend, name)


def _delete_and_reserve(backend: Backend, name: str) -> tuple[Callable[[], object], Check]:
    push(backend, payload(), queue=name)
    job = started(backend, name)
    push(backend, payload(1), queue=name)

    def send() -> Result:
        return backend.reserve([name], first=[job.delete()])[1][0]

    return _ending(send), lambda: comes_back(backend, name)


def _is_started(backend: Backend, job: Reservation) -> bool:
    assert backend.sizes(job.queue) == Sizes(reserved=1)
    apply(backend, job, Release())
    return comes_back(backend, job.queue, attempts=1)


def _start(backend: Backend, name: str) -> tuple[Callable[[], object], Check]:
    push(backend, payload(), queue=name)
    job = reserve(backend, name)
    return lambda: apply(backend, job, Start(60)), lambda: _is_started(backend, job)


def _tell(backend: Backend, name: str) -> tuple[Callable[[], object], Check]:
    """A start nobody waits for, with the deletion of the one before."""
    push(backend, payload(), payload(1), queue=name)
    done = started(backend, name)
    job = reserve(backend, name)
    refused: list[object] = []

    def do() -> None:
        if not job.started:
            backend.apply_async(
                [done.delete(), Step(job, Start(60))],
                lambda results: refused.extend(
                    each for each in results if not each.of_end(unanswered=True).applied
                ),
            )
        backend.sizes(name)

    return do, lambda: not refused and _is_started(backend, job)


def _renew(backend: Backend, name: str) -> tuple[Callable[[], object], Check]:
    push(backend, payload(), queue=name)
    job = started(backend, name)
    return lambda: apply(backend, job, Renew(60)), lambda: _is_started(backend, job)


def _next_link(backend: Backend, name: str) -> tuple[Callable[[], object], Check]:
    """The step that ends a link of a chain and pushes the next."""
    push(backend, payload(), queue=name)
    apply(backend, None, Set(name, "1"))
    job = started(backend, name)
    step = Step(job, Expect(name, "1"), Set(name, "2"), Push(name, payload(1)), Delete())
    do = _ending(lambda: backend.apply(step)[0])
    return do, lambda: backend.read(name) == ["2"] and comes_back(backend, name)


def _last_member(backend: Backend, name: str) -> tuple[Callable[[], object], Check]:
    """The step that ends the last job of a batch, and so pushes what follows."""
    push(backend, payload(), queue=name)
    apply(backend, None, Open(name, Push(name, payload(1))))
    apply(backend, None, Extend(name, 1))
    apply(backend, None, Close(name))
    job = started(backend, name)
    do = _ending(lambda: tried(backend, job, Arrive(name, 0), Delete()))
    return do, lambda: comes_back(backend, name)


def _fail(backend: Backend, name: str) -> tuple[Callable[[], object], Check]:
    push(backend, payload(), queue=name)
    job = started(backend, name)
    record = failed(name)

    def check() -> bool:
        return backend.find_failed(name) == record and backend.sizes(name) == Sizes()

    return _ending(lambda: tried(backend, job, Record(record), Delete())), check


def _requeue(backend: Backend, name: str) -> tuple[Callable[[], object], Check]:
    apply(backend, None, Record(failed(name)))
    step = Step(None, Forget(name), Push(name, payload()))

    def do() -> None:
        assert backend.apply(step)[0].applied

    return do, lambda: backend.find_failed(name) is None and comes_back(backend, name)


def _unlock(backend: Backend, name: str) -> tuple[Callable[[], object], Check]:
    apply(backend, None, Set(name, "1"))
    return lambda: apply(backend, None, Unset(name, "1")), lambda: backend.read(name) == [None]


def _kick(backend: Backend, name: str) -> tuple[Callable[[], object], Check]:
    push(backend, payload(), queue=name)
    apply(backend, started(backend, name), Bury())
    return lambda: backend.kick(name), lambda: comes_back(backend, name, attempts=1)


def _purge(backend: Backend, name: str) -> tuple[Callable[[], object], Check]:
    push(backend, payload(), queue=name)
    return lambda: backend.purge(name), lambda: backend.sizes(name) == Sizes()


def _wait(backend: Backend, name: str) -> tuple[Callable[[], object], Check]:
    return lambda: backend.wait([name], 0.01), lambda: True


def _search(backend: Backend, name: str) -> tuple[Callable[[], object], Check]:
    push(backend, payload(), queue=name)

    def check() -> bool:
        (found,) = backend.search(name, b'"u0"')
        return backend.take(found) is not None

    return lambda: backend.search(name, b'"u0"'), check


WORK: dict[str, Make] = {
    "reserve": _reserve,
    "delete-and-reserve": _delete_and_reserve,
    "start": _start,
    "tell": _tell,
    "renew": _renew,
    "delete": _settle(lambda b, n: b.sizes(n) == Sizes(), Delete()),
    "release": _settle(lambda b, n: comes_back(b, n, attempts=1), Release()),
    "give-back": _settle(comes_back, Release(0, front=True, counted=False)),
    "release-later": _settle(lambda b, n: b.sizes(n) == Sizes(delayed=1), Release(60, notes=b"n")),
    "bury": _settle(lambda b, n: b.sizes(n) == Sizes(buried=1), Bury(b"notes")),
    "next-link": _next_link,
    "last-member": _last_member,
    "fail": _fail,
    "requeue": _requeue,
    "unlock": _unlock,
    "kick": _kick,
    "purge": _purge,
    "wait": _wait,
    "search": _search,
}


# -- looks: nothing is changed ---------------------------------------------------------------------


def _look(look: Callable[[Backend, str], object]) -> Make:
    def make(backend: Backend, name: str) -> tuple[Callable[[], object], Check]:
        push(backend, payload(), queue=name)
        apply(backend, None, Set(name, "1"), Record(failed(name)), Open(name, Push(name, b"")))
        return lambda: look(backend, name), lambda: look(backend, name)

    return make


LOOKS: dict[str, Make] = {
    "sizes": _look(lambda b, n: b.sizes(n) == Sizes(ready=1)),
    "queues": _look(lambda b, n: n in b.queues()),
    "read": _look(lambda b, n: b.read(n, "none") == ["1", None]),
    "scan": _look(lambda b, n: b.scan(n) == [(n, "1")]),
    "latch": _look(lambda b, n: b.latch(n, 1) is not None),
    "find-failed": _look(lambda b, n: b.find_failed(n) == failed(n)),
    "list-failed": _look(lambda b, n: failed(n) in b.list_failed()),
    "count-failed": _look(lambda b, _: b.count_failed() > 0),
    "check": _look(lambda b, _: b.check().version),
}


def prepared(backend: Backend, *tables: dict[str, Make], without: Iterable[str] = ()) -> list[Act]:
    """Prepare each act of some tables, in a queue of its own. Holds are short."""
    backend.timing.hold = 0.3
    acts = []
    for table in tables:
        for name, make in table.items():
            if name not in without:
                acts.append(Act(name, *make(backend, name)))
    return acts


def do_all(acts: Iterable[Act]) -> None:
    """Do each, and check it."""
    for act in acts:
        act.do()
        assert act.check(), act.name
