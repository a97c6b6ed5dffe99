"""Django's own tests of task backends, run against qframe's: `python tests/django/upstream.py DIR`.

DIR is the folder `tests` of Django's source. Its modules are run as they are, but for the backend
they name: `Queued` in place of DummyBackend, `Worked` in place of ImmediateBackend. What is left
out is named below, with its reason; a name that no test has any more is an error.
"""

from __future__ import annotations

import sys
import unittest
from pathlib import Path
from typing import Any, ClassVar

DUMMY, IMMEDIATE = "django.tasks.backends.dummy", "django.tasks.backends.immediate"
REPLACED = {
    f"from {DUMMY} import DummyBackend": "from upstream import Queued as DummyBackend",
    f"from {IMMEDIATE} import ImmediateBackend": "from upstream import Worked as ImmediateBackend",
    f"{DUMMY}.DummyBackend": "upstream.Queued",
    f"{IMMEDIATE}.ImmediateBackend": "upstream.Worked",
}
MODULES = ("test_dummy_backend", "test_immediate_backend", "test_tasks", "test_custom_backend")
LEFT_OUT = {
    "ImmediateBackendTestCase.test_cannot_get_result": "qframe has results",
    "ImmediateBackendTestCase.test_cannot_refresh_result": "qframe has results",
    "ImmediateBackendTestCase.test_cannot_pass_run_after": "qframe defers",
    "DummyBackendTestCase.test_clear": "clear() is of the DummyBackend alone",
    "DummyBackendTestCase.test_refresh_result": (
        "changes a result in DummyBackend's list, where qframe has none; suite/tasking.py refreshes"
    ),
    "DummyBackendTestCase.test_refresh_result_async": "as test_refresh_result",
    "ImmediateBackendTestCase.test_throws_keyboard_interrupt": (
        "a worker interrupts no program that enqueues: it takes it for the task's failure"
    ),
}


def configure(folder: Path) -> None:
    """Set up a project whose jobs are in memory, and whose tasks are Django's."""
    import django
    from django.conf import settings

    settings.configure(
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "qframe.django"],
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        SECRET_KEY="of these tests",
        # The tests for transactions are of backends that enqueue at once, as Django's do.
        QFRAME={"default": "memory", "root": str(folder), "jobs": ["tasks"], "DISPATCH": "now"},
    )
    django.setup()


def suites(folder: Path) -> unittest.TestSuite:
    """Give all their tests but those that are left out."""
    sys.path.insert(0, str(folder))
    sys.modules["upstream"] = sys.modules[__name__]
    found, names = unittest.TestSuite(), set()
    for name in MODULES:
        text = (folder / "tasks" / f"{name}.py").read_text(encoding="utf-8")
        for theirs, ours in REPLACED.items():
            text = text.replace(theirs, ours)
        module: Any = type(sys)(f"tasks.{name}")
        module.__package__ = "tasks"
        sys.modules[module.__name__] = module
        exec(compile(text, f"{name}.py", "exec"), module.__dict__)
        for case in unittest.defaultTestLoader.loadTestsFromModule(module):
            for test in case:
                short = ".".join(test.id().rsplit(".", 2)[1:])
                names.add(short)
                if short not in LEFT_OUT:
                    found.addTest(test)
    gone = LEFT_OUT.keys() - names
    if gone:
        sys.exit(f"left out, and not there any more: {', '.join(sorted(gone))}")
    return found


def main(folder: Path) -> None:
    """Run them; exit code 1 where one fails."""
    configure(folder)
    define()
    from django.conf import settings
    from django.test.utils import get_runner

    runner = get_runner(settings)(verbosity=1, interactive=False)
    runner.setup_test_environment()
    found = suites(folder)
    before = runner.setup_databases()
    result = runner.run_suite(found)
    runner.teardown_databases(before)
    print(f"Django's own tests: {result.testsRun} run, {len(LEFT_OUT)} left out")
    for name, reason in LEFT_OUT.items():
        print(f"  left out: {name}: {reason}")
    sys.exit(bool(result.failures or result.errors))


def define() -> None:
    """Define the backends, once Django is set up."""
    from qframe import Worker, WorkerOptions, manager
    from qframe.django.tasks import QframeBackend

    class Queued(QframeBackend):
        """Keeps what was enqueued in `results`, as the DummyBackend does, for its tests to see."""

        more: ClassVar[dict[str, str]] = {}

        def __init__(self, alias: str, params: dict[str, Any]) -> None:
            super().__init__(alias, params)
            self.options = self.options | self.more
            self.results: list[Any] = []

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = super().enqueue(task, args, kwargs)
            self.results.append(result)
            return result

        def clear(self) -> None:
            self.results.clear()

    class Quiet(Worker):
        heeds_signals = False

    class Worked(QframeBackend):
        """Has a worker run what was enqueued, and gives what became of it."""

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = super().enqueue(task, args, kwargs)
            options = WorkerOptions(stop_when_empty=True, queues=(task.queue_name,))
            Quiet(manager.default(), options).run()
            result.refresh()
            return result

    for made in (Queued, Worked):
        made.__module__ = "upstream"
        made.__qualname__ = made.__name__
        globals()[made.__name__] = made


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
