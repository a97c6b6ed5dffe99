"""The apps and tasks of this process, and `current_app`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from qframe.celery.exceptions import NotRegistered


class TaskRegistry(MutableMapping[str, Any]):
    """The tasks by name: one registry for all apps, as jobs have one for all of a process."""

    def __init__(self) -> None:
        self._tasks: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        try:
            return self._tasks[name]
        except KeyError:
            raise NotRegistered(name) from None

    def __setitem__(self, name: str, task: Any) -> None:
        self._tasks[name] = task

    def __delitem__(self, name: str) -> None:
        del self._tasks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def register(self, task: Any) -> Any:
        """Add a task under its name."""
        self[task.name] = task
        return task

    def unregister(self, name: Any) -> None:
        """Remove a task."""
        del self[getattr(name, "name", name)]


tasks = TaskRegistry()


class _Apps:
    """The apps that were made; the last one is current."""

    def __init__(self) -> None:
        self.all: list[Any] = []
        self.make: Callable[[], Any] | None = None
        """Makes the app of a process without one."""

    def current(self) -> Any:
        """Return the app made last; without one, one that uses qframe's configuration."""
        if not self.all and self.make is not None:
            self.make()
        return self.all[-1]


apps = _Apps()


class _CurrentApp:
    """Stands for the app made last."""

    def __getattr__(self, name: str) -> Any:
        return getattr(apps.current(), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(apps.current(), name, value)

    def __eq__(self, other: object) -> bool:
        return other is apps.current() or other is self

    def __hash__(self) -> int:
        return hash(apps.current())

    def __repr__(self) -> str:
        return repr(apps.current())


current_app: Any = _CurrentApp()
