"""Somebody else who uses the same connection: another process, or at least another thread.

    python -m tests.support.client FOLDER CONNECTIONS-AS-JSON

reads commands from stdin, one JSON list per line, and answers each with a line of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qframe import QueueManager
from qframe.drivers.base import BaseQueue

_ROOT = Path(__file__).resolve().parents[2]


class Client(ABC):
    """Runs commands elsewhere: `tell` does not wait for the answer that `answer` gives."""

    @abstractmethod
    def tell(self, command: str, *arguments: Any) -> None: ...

    @abstractmethod
    def answer(self) -> Any: ...

    @abstractmethod
    def close(self) -> None: ...

    def kill(self) -> None:
        """End it without a chance to say good-bye, where it is a process."""
        self.close()

    def ask(self, command: str, *arguments: Any) -> Any:
        self.tell(command, *arguments)
        return self.answer()


class ProcessClient(Client):
    """Another process, which is there and connected once made."""

    def __init__(self, folder: Path, connections: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.client", str(folder), json.dumps(connections)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
        )
        self.ask("ping")

    def tell(self, command: str, *arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, *arguments]) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(timeout=30)

    def kill(self) -> None:
        self._process.kill()
        self.close()


class ThreadClient(Client):
    """Another thread with a manager of its own, for what no other process can see."""

    def __init__(self, manager: Callable[[], QueueManager]) -> None:
        self._queue = _only(manager())
        self._answers: list[Any] = []
        self._running: list[threading.Thread] = []

    def tell(self, command: str, *arguments: Any) -> None:
        thread = threading.Thread(target=self._obey, args=(command, *arguments))
        self._running.append(thread)
        thread.start()

    def _obey(self, command: str, *arguments: Any) -> None:
        self._answers.append(obey(self._queue, command, *arguments))

    def answer(self) -> Any:
        self._running.pop(0).join()
        return self._answers.pop(0)

    def close(self) -> None:
        for thread in self._running:
            thread.join()


def obey(queue: BaseQueue, command: str, *arguments: Any) -> Any:  # noqa: C901, PLR0911 (each its own)
    """Carry out one command and give its answer."""
    match command, arguments:
        case "ping", ():
            return queue.ping()
        case "push", (name, body):
            return queue.push_raw(body, name)
        case "push after", (pause, name, body):
            time.sleep(pause)
            return queue.push_raw(body, name)
        case "drain", (name,):
            bodies = []
            while jobs := queue.reserve([name], 10):
                for job in jobs:
                    queue.start(job)
                    bodies.append(job.raw_body.decode())
                    job.delete()
            return bodies
        case "add", (moment, keys, value):
            store = queue.own_store()
            assert store is not None
            time.sleep(max(0, moment - time.time()))
            return [key for key in keys if store.add(key, value)]
        case "increment", (moment, keys, times):
            store = queue.own_store()
            assert store is not None
            time.sleep(max(0, moment - time.time()))
            name = f"{os.getpid()} {threading.get_ident()}"
            return sum(
                store.increment(dict.fromkeys(keys, 1), name, str(step)) for step in range(times)
            )
        case "count up", (moment, keys, times):
            store = queue.own_store()
            assert store is not None
            time.sleep(max(0, moment - time.time()))
            done = tried = 0
            while done < times:
                found = store.get(*keys)
                up = {key: (n, str(int(n or 0) + 1)) for key, n in zip(keys, found, strict=True)}
                done += store.swap(up, 60)
                tried += 1
            return tried
        case "requeue", (moment, uuids):
            failed = queue.own_failed_store()
            assert failed is not None
            records = [(uuid, failed.find(uuid)) for uuid in uuids]
            time.sleep(max(0, moment - time.time()))
            return [
                uuid
                for uuid, record in records
                if record and queue.requeue(record, record.payload, failed)
            ]
        case "forget", (moment, uuids):
            failed = queue.own_failed_store()
            assert failed is not None
            time.sleep(max(0, moment - time.time()))
            return [uuid for uuid in uuids if failed.forget(uuid)]
    raise ValueError(command)


def _only(manager: QueueManager) -> BaseQueue:
    return manager.connection(manager.settings.default)


def main() -> None:
    """Obey what comes on stdin."""
    folder, connections = sys.argv[1], json.loads(sys.argv[2])
    (name,) = connections
    queue = _only(QueueManager({"root": folder, "default": name, "connections": connections}))
    for line in sys.stdin:
        print(json.dumps(obey(queue, *json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
