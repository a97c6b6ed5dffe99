"""A child forked while another thread makes the process's first dispatch can dispatch itself."""

from __future__ import annotations

import faulthandler
import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from qframe import forks
from tests.support.projects import environment_of

_REPOSITORY = Path(__file__).parents[2]


def _forking(settings: Mapping[str, object], folder: Path, *arguments: str) -> str:
    """Run `tests.support.forking_dispatches`; gives what it says of the moments."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.forking_dispatches", *arguments],
        cwd=_REPOSITORY,
        env=os.environ | environment_of(settings, folder),
        capture_output=True,
        text=True,
        check=False,
    )
    *wrong, count = done.stdout.splitlines() or [done.stderr]
    assert not wrong, done.stdout + done.stderr
    assert "moments in" in count, done.stderr
    assert not done.stderr
    return count


def _modules(settings: Mapping[str, object]) -> list[str]:
    """Name what a dispatch imports: the moments are those of connecting and pushing, then."""
    kind = str(settings.get("url")).partition(":")[0].partition("+")[0]
    client = {
        "sqlite": ["sqlalchemy.dialects.sqlite.pysqlite"],
        "postgresql": ["sqlalchemy.dialects.postgresql.psycopg", "psycopg"],
        "mariadb": ["sqlalchemy.dialects.mysql.mariadb", "pymysql"],
    }
    return [f"qframe.drivers.{settings['driver']}.backend", *client.get(kind, [])]


def test_a_child_forked_while_a_thread_connects_can_dispatch(
    each_connection: dict[str, object], tmp_path: Path
) -> None:
    _forking(each_connection, tmp_path, "drop", "6", *_modules(each_connection))


def test_a_child_forked_while_a_thread_writes_a_first_field_can_write_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.forking_first_uses", "30"],
        cwd=_REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["over"], done.stdout + done.stderr
    assert not done.stderr


# -- what `forks` promises ------------------------------------------------------------------------


def _in_a_child(act: Callable[[], object]) -> int:
    """Do something in a forked child; gives its exit code, which is not 0 where it raises."""
    pid = os.fork()
    if not pid:
        faulthandler.dump_traceback_later(60, exit=True)
        try:
            act()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("make", [forks.lock, forks.rlock])
def test_a_lock_that_another_thread_holds_is_free_in_a_child(
    make: Callable[[], threading.Lock],
) -> None:
    lock, held, over = make(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            over.wait()

    def take() -> None:
        assert lock.acquire(timeout=30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    code = _in_a_child(take)
    assert not lock.acquire(blocking=False)
    over.set()
    thread.join()
    assert code == 0


def test_the_thread_that_forks_keeps_a_reentrant_lock_it_holds() -> None:
    lock = forks.rlock()

    def release() -> None:
        lock.release()
        assert lock.acquire(timeout=30)

    with lock:
        assert _in_a_child(release) == 0


_IMPORTS = """
import os, threading
from qframe import forks

inside = threading.Event()

def open_something():
    with forks.undisturbed():
        inside.set()
        while not forks._openings._forking:
            pass
        import concurrent.futures.thread

thread = threading.Thread(target=open_something)
thread.start()
inside.wait()
pid = os.fork()
if not pid:
    os._exit(0)
os.waitpid(pid, 0)
thread.join()
"""


def test_a_fork_is_silent_that_waits_while_a_thread_imports_what_has_hooks_for_forks() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTS],
        cwd=_REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@pytest.mark.parametrize("asks", [True, False])
def test_a_fork_waits_for_an_opening_in_another_thread_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    seen = list[str]()
    inside, over = threading.Event(), threading.Event()

    def open_something() -> None:
        with forks.undisturbed(), forks.undisturbed(asks=asks):
            inside.set()
            over.wait()
            seen.append("opened")

    def forked() -> int:
        thread = threading.Thread(target=open_something)
        thread.start()
        inside.wait()
        threading.Timer(0.2, over.set).start()
        code = _in_a_child(lambda: seen[0])
        over.set()
        thread.join()
        return code

    assert forked() == 0
    assert forks.was_clean()
    for each in (inside, over, seen):
        each.clear()
    monkeypatch.setattr(forks, "_PATIENCE" if asks else "_LONG_PATIENCE", 0.05)
    assert forked() == 1
    assert not forks.was_clean()
    with forks.undisturbed():
        assert _in_a_child(lambda: None) == 0


def test_a_child_of_a_thread_that_opens_something_can_open_something() -> None:
    def open_something() -> None:
        with forks.undisturbed():
            pass

    with forks.undisturbed():
        assert _in_a_child(open_something) == 0


def test_what_begins_anew_in_a_child_does_not_keep_its_owner() -> None:
    class Owner:
        renewed = 0

        def renew(self) -> None:
            self.renewed += 1

    owners = [Owner()]
    forks.in_child_of(owners[0], Owner.renew)
    there = weakref.ref(owners[0])

    assert _in_a_child(lambda: owners[0].renewed / owners[0].renewed) == 0
    assert owners.pop().renewed == 0
    gc.collect()
    assert there() is None


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["send", "drop"])
def test_a_child_can_dispatch_that_was_forked_at_any_moment_of_a_first_dispatch(
    each_connection: dict[str, object], tmp_path: Path, how: str
) -> None:
    moments = int(os.environ.get("FORK_MOMENTS", "10"))
    _forking(each_connection, tmp_path, how, str(moments), *_modules(each_connection))
    _forking(each_connection, tmp_path, how, str(moments // 2))
