"""Which queues names, patterns and skips stand for, and what the store says about them."""

from __future__ import annotations

from typing import Any

import pytest

from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.store import Store, pause_key
from qframe.exceptions import BackendUnavailable, ConfigurationError, InvalidQueueName
from qframe.worker import WorkerOptions
from qframe.worker.control import Control
from qframe.worker.queues import KEPT, WorkedQueues, bounded, shown

THERE = ["MAIL-x", "default", "high", "mail-a", "mail-b", "mail-slow", "x.1:2"]


class Backend:
    """Queues that can be listed, or cannot for now."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.down = False
        self.asked = 0

    def queues(self) -> list[str]:
        self.asked += 1
        if self.down:
            raise BackendUnavailable("down")
        return self.names


class Pauses(Store):
    """A store in which nothing but pauses are looked for."""

    def __init__(self, *paused: str) -> None:
        super().__init__(MemoryBackend())
        self.paused = {pause_key("c", name) for name in paused}
        self.down = False
        self.asked: list[tuple[str, ...]] = []

    def get(self, *keys: str) -> list[str | None]:
        self.asked.append(keys)
        if self.down:
            raise BackendUnavailable("down")
        return ["1" if key in self.paused else None for key in keys]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("qframe.worker.control.time.monotonic", lambda: now[0])
    return now


def found(given: str, *there: str) -> list[str]:
    """Give what is worked, in its order."""
    return list(WorkedQueues(given.split(","), lambda: there or THERE).find())


# -- matching and order -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("*", THERE),
        ("mail-*", ["mail-a", "mail-b", "mail-slow"]),
        ("mail-?", ["mail-a", "mail-b"]),
        ("mail-[bs]*", ["mail-b", "mail-slow"]),
        ("mail-[!bs]*", ["mail-a"]),
        ("[a-f]*", ["default"]),
        ("MAIL-*", ["MAIL-x"]),
        ("x.*", ["x.1:2"]),
        ("x?1:2", ["x.1:2"]),
        ("nothing-*", []),
        ("*a", ["mail-a"]),
        ("ail-*", []),
        ("high,mail-*,!mail-slow", ["high", "mail-a", "mail-b"]),
        ("!mail-slow,high,mail-*", ["high", "mail-a", "mail-b"]),
        ("*,!mail-*", ["MAIL-x", "default", "high", "x.1:2"]),
        ("mail-b,*,!x*", ["mail-b", "MAIL-x", "default", "high", "mail-a", "mail-slow"]),
        ("mail-[sb]*,default,mail-*", ["mail-b", "mail-slow", "default", "mail-a"]),
        ("mail-*,mail-a", ["mail-a", "mail-b", "mail-slow"]),
        ("not-there,high", ["not-there", "high"]),
        ("b,a,b", ["b", "a"]),
        ("a,b,!b", ["a"]),
        ("a,b,!b*", ["a"]),
    ],
)
def test_what_is_worked_and_in_which_order(given: str, expected: list[str]) -> None:
    assert found(given) == expected


def test_a_dot_is_a_dot() -> None:
    assert found("a.*", "a.b", "aXb") == ["a.b"]
    assert found("*,!a.b", "a.b", "aXb") == ["aXb"]


def test_a_name_that_is_none_of_ours_is_not_matched() -> None:
    assert found("*", "two words", "good", "\n", "", "x" * 129) == ["good"]


def test_names_alone_are_never_listed() -> None:
    queues = WorkedQueues(["b", "a", "!c*"], Backend().queues)
    assert queues.patterns == ()
    assert queues.names == ("b", "a")


WRONG = [
    (["mail-["], "'mail-[' is not a pattern of queue names"),
    (["mail-[]"], "is not a pattern"),
    (["mail-[!]"], "is not a pattern"),
    (["a]*"], "is not a pattern"),
    (["[z-a]"], "is not a pattern"),
    (["[bz-a]*"], "is not a pattern"),
    (["mail *"], "is not a pattern"),
    (["ü*"], "is not a pattern"),
    (["*\n"], r"'\*\\n' is not a pattern"),
    (["a*!b"], "is not a pattern"),
    (["!mail-["], "'mail-[' is not a pattern"),
    (["!"], "'' is not a queue name"),
    (["!!a"], "'!a' is not a queue name"),
    (["a!"], "'a!' is not a queue name"),
    (["a", ""], "'' is not a queue name"),
    ([5], "5 is not a queue name"),
    (["*" + " " * 300], "is not a pattern"),
]


@pytest.mark.parametrize(("given", "message"), WRONG, ids=str)
def test_what_is_neither_a_name_nor_a_pattern_is_refused(given: list[str], message: str) -> None:
    with pytest.raises(InvalidQueueName, match=message.replace("[", r"\[")) as caught:
        WorkerOptions(queues=tuple(given))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("given", ["!a", "!*", "a,!a", "a,b,!*", "ab,!a?"])
def test_skips_that_leave_nothing_are_refused(given: str) -> None:
    with pytest.raises(ConfigurationError, match="leaves no queue to work: give a name, or"):
        WorkerOptions(queues=tuple(given.split(",")))


@pytest.mark.parametrize(
    ("given", "names", "bounds"),
    [
        ("mail:5,*", "mail,*", {"mail": 5}),
        ("a:5:50", "a:5", {"a:5": 50}),
        ("mail-*:5,high", "mail-*,high", {"mail-*": 5}),
        ("[a-c]:1", "[a-c]", {"[a-c]": 1}),
        ("a:3,a:2,a", "a,a,a", {"a": 2}),
        ("a:007", "a", {"a": 7}),
        ("*,!a:5", "*,!a:5", {}),
        ("a:b,a:5x,a:1e3,a:", "a:b,a:5x,a:1e3,a:", {}),
        ("", "", {}),
    ],
)
def test_a_number_behind_a_colon_is_a_bound(given: str, names: str, bounds: dict[str, int]) -> None:
    parts = given.split(",")
    assert bounded(parts) == (tuple(names.split(",")), bounds)
    assert ",".join(shown(*bounded(parts))).replace("a:2,a:2,a:2", "a:3,a:2,a") in {
        given.replace("007", "7"), given,
    }  # fmt: skip


@pytest.mark.parametrize("bounds", [{"a": 0}, {"a": -1}, {"a": 1001}, {"a": True}, {"a": "5"}])
def test_wrong_bounds_in_code_are_refused(bounds: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"'a:.*from 1 to 1000"):
        WorkerOptions(bounds=bounds)


def test_bounds_in_code_are_of_names_and_patterns() -> None:
    assert WorkerOptions(queues=("a:5",), bounds={"a:5": 3, "b*": 1000}).queues == ("a:5",)
    with pytest.raises(InvalidQueueName):
        WorkerOptions(bounds={"a b": 5})


@pytest.mark.parametrize("given", ["[a-]", "[-a]x", "[a-c-e]*", "[--a]", "[!-]", "z-a*", "*" * 99])
def test_hyphens_and_stars_are_taken_as_written(given: str) -> None:
    """None of these is a warning of `re`, which would be an error here."""
    WorkerOptions(queues=(given,))
    found(given)


# -- refreshing ---------------------------------------------------------------------------------


def test_a_queue_that_appears_is_found(clock: list[float]) -> None:
    backend = Backend("b")
    queues = WorkedQueues(["*"], backend.queues)
    assert queues.names == ()
    assert queues.find() == ("b",)
    backend.names = ["a", "b"]
    assert queues.find() == ("a", "b")


def test_a_queue_that_ran_empty_is_kept_for_a_while(clock: list[float]) -> None:
    backend = Backend("a", "b")
    queues = WorkedQueues(["*"], backend.queues)
    queues.find()
    backend.names = ["b"]
    clock[0] += KEPT - 1
    assert queues.find() == ("a", "b")
    clock[0] += 1
    assert queues.find() == ("b",)


def test_the_last_known_queues_hold_while_they_cannot_be_listed(
    caplog: pytest.LogCaptureFixture, clock: list[float]
) -> None:
    backend = Backend("a")
    queues = WorkedQueues(["*"], backend.queues)
    queues.find()
    backend.down = True
    for _ in range(3):
        clock[0] += KEPT
        assert queues.find() == ("a",)
    assert [record.getMessage() for record in caplog.records] == [
        "the queues cannot be listed: down"
    ]
    backend.down, backend.names = False, ["c"]
    assert queues.find() == ("c",)
    backend.down = True
    assert queues.find() == ("c",)
    assert len(caplog.records) == 2


def test_names_given_hold_although_nothing_was_ever_listed() -> None:
    backend = Backend()
    backend.down = True
    assert WorkedQueues(["high", "mail-*"], backend.queues).find() == ("high",)


def test_with_nothing_to_work_a_failed_listing_is_a_lost_backend() -> None:
    backend = Backend("high")
    queues = WorkedQueues(["mail-*"], backend.queues)
    for down in (True, False, True):
        backend.down = down
        if down:
            with pytest.raises(BackendUnavailable):
                queues.find()
        else:
            assert queues.find() == ()


# -- with the store -----------------------------------------------------------------------------


def controlled(backend: Backend, store: Store, *given: str, force: bool = False) -> Control:
    queues = WorkedQueues(given, backend.queues)
    find = queues.find if queues.patterns else None
    return Control(store, "c", queues.names, force=force, find=find)


def after(clock: list[float], control: Control) -> tuple[str, ...]:
    """Give what is worked after the next look."""
    clock[0] += 2
    control.look()
    return control.active


def test_queues_are_listed_once_a_second_at_most(clock: list[float]) -> None:
    backend = Backend("a")
    control = controlled(backend, Pauses(), "*")
    for _ in range(40):
        control.look()
        clock[0] += 0.125
    assert backend.asked == 5


def test_they_are_listed_every_two_seconds_where_nothing_changes(clock: list[float]) -> None:
    """So an idle worker stays within two round trips a second, wait and reservation included."""
    backend, store = Backend("a"), Pauses()
    control = controlled(backend, store, "*")
    for _ in range(80):
        control.look()
        clock[0] += 0.125
    backend.asked, store.asked = 0, []
    for _ in range(800):
        control.look()
        clock[0] += 0.125
    assert (backend.asked, len(store.asked)) == (50, 50)
    backend.names = ["a", "b"]
    clock[0] += control.every
    control.look()
    assert control.active == ("a", "b")
    assert control.every == 1


def test_without_a_pattern_nothing_is_listed(clock: list[float]) -> None:
    backend = Backend("a")
    control = controlled(backend, Pauses(), "a", "!b")
    for _ in range(3):
        control.look()
        assert not control.finds_more()
        clock[0] += 2
    assert backend.asked == 0


def test_the_pause_of_a_queue_is_asked_for_before_it_is_worked(clock: list[float]) -> None:
    backend, store = Backend("a"), Pauses("b")
    control = controlled(backend, store, "*")
    assert after(clock, control) == ("a",)
    backend.names = ["a", "b", "c"]
    assert after(clock, control) == ("a", "c")
    assert store.asked[-1][2:] == (pause_key("c", "a"), pause_key("c", "b"), pause_key("c", "c"))


def test_a_queue_whose_pause_cannot_be_asked_for_is_not_worked_yet(clock: list[float]) -> None:
    backend, store = Backend("a"), Pauses("b")
    control = controlled(backend, store, "*")
    control.look()
    backend.names, store.down = ["a", "b", "c"], True
    assert after(clock, control) == ("a",)
    store.down = False
    assert after(clock, control) == ("a", "c")


def test_a_pause_is_heard_while_the_queues_cannot_be_listed(clock: list[float]) -> None:
    backend, store = Backend("a", "b"), Pauses()
    control = controlled(backend, store, "*")
    control.look()
    backend.down = True
    store.paused.add(pause_key("c", "a"))
    assert after(clock, control) == ("b",)


def test_no_queue_is_not_a_pause(clock: list[float]) -> None:
    backend, store = Backend(), Pauses()
    control = controlled(backend, store, "*")
    control.look()
    assert (control.active, control.paused) == ((), False)
    backend.names = ["a"]
    store.paused.add(pause_key("c", "a"))
    clock[0] += 2
    control.look()
    assert (control.active, control.paused) == ((), True)


def test_a_pause_is_over_when_it_is_ended_not_when_its_queue_runs_empty(
    clock: list[float],
) -> None:
    backend, store = Backend("a"), Pauses("a")
    control = controlled(backend, store, "*")
    control.look()
    backend.names = []
    for _ in range(3):
        clock[0] += KEPT
        control.look()
        assert control.paused
    store.paused.clear()
    after(clock, control)
    assert not control.paused


@pytest.mark.parametrize("force", [False, True])
def test_the_pause_of_everything_holds_where_there_is_no_queue(
    clock: list[float], *, force: bool
) -> None:
    store = Pauses()
    store.paused.add(pause_key("c"))
    control = controlled(Backend(), store, "*", force=force)
    control.look()
    assert control.paused is not force


def test_a_worker_about_to_end_looks_again_at_once(clock: list[float]) -> None:
    backend, store = Backend("a"), Pauses("c")
    control = controlled(backend, store, "*")
    control.look()
    assert not control.finds_more()
    backend.names = ["a", "b"]
    assert control.finds_more()
    assert control.active == ("a", "b")
    assert not control.finds_more()
    backend.names = ["a", "b", "c"]
    assert not control.finds_more(), "it is paused"
