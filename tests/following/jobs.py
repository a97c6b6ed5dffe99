"""Links and members for the tests here: each writes down that it ran."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from qframe import Batch, Queueable, Secret, batch, dispatch, events
from qframe.exceptions import DontHandle, InvalidJob

ran: list[Any] = []
"""What ran, in order."""


class Say(Queueable):
    word: str
    fails: bool = False

    def handle(self) -> None:
        ran.append(self.word)
        if self.fails:
            raise ValueError(f"cannot say {self.word}")


def says(*words: str) -> list[Queueable]:
    return [Say(word=word) for word in words]


class Tagged(Say):
    def tags(self) -> list[str]:
        return [f"word:{self.word}", "said"]


class Elsewhere(Say):
    queue = "elsewhere"


class Later(Say):
    delay = 30


class Hurried(Say):
    """May not wait long."""

    expires = 2
    retry_until = 2


class Slow(Say):
    def handle(self) -> None:
        super().handle()
        time.sleep(2.1)


class Asked(Say):
    def retry_until(self) -> float:
        return 2


class Skips(Say):
    def handle(self) -> None:
        ran.append(self.word)
        raise DontHandle


class Deletes(Say):
    def handle(self) -> None:
        ran.append(self.word)
        self.delete()


class Again(Say):
    """Releases itself at first."""

    def handle(self) -> None:
        ran.append(f"{self.word} {self.attempts}")
        if self.attempts == 1:
            self.release()


class Only(Say):
    unique = True


class Dispatches(Queueable):
    """Dispatches one of its own kind while it runs, and says whether that was a duplicate."""

    again: bool = False
    unique = True
    connection = "sync"

    def unique_id(self) -> str:
        return "the one"

    def handle(self) -> None:
        if not self.again:
            ran.append(type(self)(again=True).dispatched())

    def dispatched(self) -> bool:
        return dispatch(self).is_duplicate


class DispatchesFreely(Dispatches):
    unique_until = "started"


class Sealed(Queueable):
    word: Secret[str]
    encrypted = True

    def handle(self) -> None:
        ran.append(self.word.reveal())


class Tracked(Say):
    track = True


class Extends(Queueable):
    def handle(self) -> None:
        ran.append("extends")
        self.prepend_to_chain(Say(word="right behind"))
        self.append_to_chain(Elsewhere(word="at the end"))


class Grows(Queueable):
    by: int = 1

    def handle(self) -> None:
        ran.append("grows")
        own = self.batch()
        assert own is not None
        own.add(*(Say(word=f"added {number}") for number in range(self.by)))


to_add: list[Any] = []


class Adds(Queueable):
    """Adds what the test has said to its own batch."""

    def handle(self) -> None:
        own = self.batch()
        assert own is not None
        try:
            own.add(*to_add)
        except InvalidJob:
            ran.append("refused")


class Cancels(Queueable):
    def handle(self) -> None:
        own = self.batch()
        assert own is not None
        ran.append(own.cancel())


class Follows(Queueable):
    """What is dispatched before, in and after a batch or chain."""

    what: str
    fails: bool = False
    tries: ClassVar[int | None] = 2

    def handle(self) -> None:
        own: Batch | None = self.batch()
        ran.append(self.what if own is None else (self.what, own.done, own.failed))
        if self.caught is not None:
            ran.append((self.caught.name.rpartition(".")[2], self.caught.error))
        if self.fails and self.attempts == 1:
            raise ValueError("not at first")


class Nested(Queueable):
    """Dispatches a batch of its own."""

    def handle(self) -> None:
        batch([Say(word="inner")]).then(Follows(what="then of inner")).dispatch()


heard: list[Any] = []


def hear(event: events.JobQueueing) -> None:
    event.payload["from"] = "listener"
    heard.append(type(event.job).__name__)
