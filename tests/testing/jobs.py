"""Jobs of an application that is tested with qframe.testing."""

from __future__ import annotations

from typing import Any, ClassVar

from qframe import DontHandle, Queueable, QueueManager, manager, queueable
from qframe.middleware import RateLimited
from qframe.payload.secret import Secret


class SendWelcome(Queueable):
    user_id: int
    text: str = "hello"
    queue = "emails"
    tries = 3
    backoff = (1, 5)

    def handle(self) -> str:
        if self.user_id == 0:
            raise ValueError("nobody has number 0")
        return f"{self.text}, {self.user_id}"


class SendPatiently(SendWelcome):
    backoff = (60, 60)


class SendLater(SendWelcome):
    delay = 60


class OnSync(Queueable):
    connection = "sync"
    ran: ClassVar[list[int]] = []
    number: int = 0

    def handle(self) -> int:
        self.ran.append(self.number)
        return self.number


class Login(Queueable):
    user: str
    password: Secret[str]

    def handle(self) -> None:
        pass


class Hidden(Queueable):
    card: str
    encrypted = True

    def handle(self) -> str:
        return self.card


class OneAtOnce(Queueable):
    account: int
    unique = True

    def handle(self) -> None:
        pass


class Debounced(Queueable):
    account: int
    debounce = 30

    def handle(self) -> None:
        pass


class Settling(Queueable):
    """Does what it is told."""

    how: str
    seen: ClassVar[list[object]] = []

    def handle(self) -> Any:
        self.seen.append((self.attempts, self.job.queue, self.job.connection_name))
        match self.how:
            case "release":
                self.release(10)
            case "release at once":
                self.release()
            case "delete":
                self.delete()
            case "fail":
                self.fail(KeyError("by hand"))
            case "raise":
                raise ValueError("it broke")
            case "skip":
                raise DontHandle("not today")
            case "progress":
                self.progress(0.25, "a quarter")
                self.progress(1)
            case "stop the test":
                raise KeyboardInterrupt
        return self.how

    def failed(self, error: BaseException) -> None:
        self.seen.append(error)

    def succeeded(self) -> None:
        self.seen.append("succeeded")


class Counted(Queueable):
    max_exceptions = 2
    tries = 0

    def handle(self) -> None:
        raise ValueError


class Limited(Queueable):
    def middleware(self) -> list[RateLimited]:
        return [RateLimited("1/hour")]

    def handle(self) -> str:
        return "ran"


class Parent(Queueable):
    queue = "parents"

    def handle(self) -> None:
        for user_id in (1, 2):
            SendWelcome.dispatch(user_id=user_id)


class Follows(Queueable):
    what: str = ""

    def handle(self) -> None:
        pass


class Link(Queueable):
    """Does what it is told to its chain and its batch."""

    how: str
    seen: ClassVar[list[Any]] = []

    def handle(self) -> None:
        stack = self.batch()
        match self.how:
            case "extend":
                self.append_to_chain(SendWelcome(user_id=1))
                self.append_to_chain(add.job(1))
                self.prepend_to_chain(SendWelcome(user_id=2))
            case "add" if stack is not None:
                self.seen.append(stack.add(SendWelcome(user_id=1), [Follows(), add.job(2)]))
            case "cancel" if stack is not None:
                self.seen.append((stack.is_cancelled, stack.cancel()))
            case _:
                self.seen.append((stack, self.caught))


class Endless(Queueable):
    def handle(self) -> None:
        self.release()


@queueable(queue="math")
def add(a: int, b: int = 2) -> int:
    return a + b


@queueable
async def add_slowly(a: int) -> int:
    return a + 1


def signed_up(count: int = 1) -> None:
    """Be the application."""
    for number in range(count):
        SendWelcome.dispatch(user_id=7 + number)


def use(**connections: dict[str, Any]) -> QueueManager:
    """Have these connections, and a worker that knows the jobs of this module."""
    made = QueueManager({"connections": connections, "jobs": [__name__], "default": "database"})
    manager.use(made)
    return made
