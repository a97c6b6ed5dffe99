"""Needs: what the life of a job asks of its executor, as values, and how an executor answers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from types import CoroutineType, GeneratorType, coroutine
from typing import Any, NamedTuple, TypeVar

from qframe.features.base import End
from qframe.worker.outcome import Verdict

T = TypeVar("T")


class Begin:
    """The job is to start. Answer: whether it did; if not, it is no longer ours, or waits."""


class Run:
    """The handler is to be called under its timeout. Answer: a `Report`."""


class Learn(NamedTuple):
    """The job was completed within a transaction: learn whether that committed."""

    error: BaseException | None


class Decide(NamedTuple):
    """The job's class decides on an attempt that raised. Answer: a `Verdict`."""

    error: BaseException


class Settle(NamedTuple):
    """The job is to end. Raises `SettleError` if it is no longer ours, `BackendUnavailable`."""

    end: End


class CallFailed(NamedTuple):
    """The job's hooks are to be called with its outcome."""

    verdict: Verdict


class Wait(NamedTuple):
    """Some time is to pass."""

    seconds: float


Need = Begin | Run | Learn | Decide | Settle | CallFailed | Wait
Life = Generator[Need, Any, T]
BEGIN, RUN = Begin(), Run()
Answers = Mapping[type, Callable[[Any, Any], Any]]
"""What answers each kind of need, called with the slot or attempt and the need."""


class Report(NamedTuple):
    """How the handler of an attempt ended."""

    error: BaseException | None = None
    result: Any = None
    """What `handle` returned."""
    verdict: Verdict | None = None
    """What is to become of the job, if the process that ran it decided."""
    intent: End | None = None
    """How the job settled itself there, which is still to be applied."""
    waits: bool = False
    """Whether that process waits for the outcome."""


NOTHING = Report()


class Left(BaseException):
    """A life goes on elsewhere: nothing more is to be done for it here."""


def lived(who: object, life: Life[T], answers: Answers, need: Need | None = None) -> T:
    """Runs a life to its end here and now; `need` is what it waits for already."""
    try:
        next(lived_in_steps(who, life, answers, need))
    except StopIteration as ended:
        value: T = ended.value
        return value
    raise TypeError("an answer takes time")


@coroutine
def lived_in_steps(
    who: object, life: Life[T], answers: Answers, need: Need | None
) -> Generator[Any, Any, T]:
    """As `lived`, if an answer may take time: it is a generator or a coroutine then."""
    go_on: Callable[[Any], Need] = life.send
    answer_given: Any = None
    try:
        need = need or next(life)
        while True:
            try:
                answer_given = answers[type(need)](who, need)
                if isinstance(answer_given, _TAKES_TIME):
                    answer_given = yield from answer_given
                go_on = life.send
            except Left:
                raise
            except BaseException as error:  # noqa: BLE001 (it may have to clean up, and raises)
                go_on, answer_given = life.throw, error
            need = go_on(answer_given)
    except StopIteration as ended:
        value: T = ended.value
        return value


_TAKES_TIME: Any = (GeneratorType, CoroutineType)
