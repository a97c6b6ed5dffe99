"""Jobs under way while something breaks, and what must have become of them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Self

from qframe.contracts.backend import Backend
from qframe.exceptions import BackendUnavailable
from tests.support.process import Process, wait_for
from tests.support.projects import RedisProject, body, lines_with
from tests.support.redis_server import RedisServer


def cut_off(master: RedisServer, replicas: Iterable[RedisServer]) -> None:
    """Let replicas hear no more of their master, and not know it."""
    for replica in replicas:
        replica.pause()
    master.command("CLIENT", "KILL", "TYPE", "replica")


class Producer:
    """A thread that pushes jobs one after the other; `accepted` are those that were taken."""

    def __init__(self, app: RedisProject, *names: str, pause: float = 0.005) -> None:
        self._queue = app.queue
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
        self._queue.backend.close()

    def wait_for_refusal(self) -> None:
        """Wait until one more has been refused."""
        there = len(self.refusals)
        wait_for(lambda: len(self.refusals) > there, "a job to be refused")

    def wait_for_more(self, count: int = 30) -> None:
        """Wait until so many more have been taken."""
        there = len(self.accepted)
        wait_for(lambda: len(self.accepted) >= there + count, f"{count} more jobs to be taken")


def check_all_done(app: RedisProject, producer: Producer, workers: Sequence[Process]) -> None:
    """No job is missing, and no worker had more to say than that its backend was away."""

    def missing() -> set[str]:
        return set(producer.accepted) - {words[1] for words in app.notes("D")}

    wait_for(lambda: not missing(), "every accepted job to be done", 60)
    assert producer.surprises == []
    assert app.failed() == []
    for worker in workers:
        wait_for(lambda worker=worker: _is_back(worker), "a worker to be back")  # type: ignore[misc]
        assert worker.stop() == 0
        assert "Traceback" not in worker.err


def _is_back(worker: Process) -> bool:
    return len(lines_with(worker, " gone: ")) == len(lines_with(worker, " back after "))


class Waiting:
    """A thread in `wait` on queues, which have nothing; `error` is what it raised."""

    def __init__(self, backend: Backend, queues: Sequence[str], seconds: float) -> None:
        self._backend, self._queues, self._seconds = backend, queues, seconds
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._wait)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _wait(self) -> None:
        try:
            assert self._backend.reserve(self._queues)[0] == []
            self._backend.wait(self._queues, self._seconds)
        except Exception as error:  # noqa: BLE001 (the test asks for it)
            self.error = error
        finally:
            self._backend.close()

    def over(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()


def blocked(*servers: RedisServer) -> int:
    """Count the clients that wait."""
    return sum(each.info("clients")["blocked_clients"] for each in servers if each.alive())
