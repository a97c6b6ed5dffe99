"""Stream: what it does where it cannot write."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from typing import TextIO

import pytest

from qframe.console import stream, text
from qframe.console.stream import LogHandler, Stream
from tests.support.process import wait_for


class Pipe:
    """A small pipe, which nobody reads unless asked to."""

    def __init__(self) -> None:
        self.reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        os.set_blocking(self.reader, False)
        self.stream: TextIO = os.fdopen(writer, "w", encoding="utf-8")

    def read(self) -> str:
        with contextlib.suppress(BlockingIOError):
            return os.read(self.reader, 1 << 20).decode()
        return ""


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    os.close(made.reader)
    with contextlib.suppress(OSError, ValueError):
        made.stream.close()


LINE = "x" * 99 + "\n"


def test_a_full_pipe_holds_nobody_up_and_loses_nothing(pipe: Pipe) -> None:
    made = Stream(pipe.stream)
    began = time.monotonic()
    for _ in range(100):
        made.write(LINE)
    assert time.monotonic() - began < 30
    seen = ""

    def all_read() -> bool:
        nonlocal seen
        seen += pipe.read()
        return seen == LINE * 100

    wait_for(all_read, "all lines")


def test_what_there_is_no_room_for_is_counted(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_MOST", 1000)
    monkeypatch.setattr(stream, "_PATIENCE", 0.01)
    made = Stream(pipe.stream)
    for _ in range(100):
        made.write(LINE)
    seen = ""

    def told() -> bool:
        nonlocal seen
        seen += pipe.read()
        return "left out" in seen

    wait_for(told, "the count")
    *lines, last = seen.splitlines()
    assert last == f"  {100 - len(lines)} lines left out: its reader did not read"
    assert set(lines) == {"x" * 99}


def test_a_child_does_not_write_what_its_parent_keeps(pipe: Pipe) -> None:
    made = Stream(pipe.stream)
    for _ in range(60):
        made.write(LINE)
    pid = os.fork()
    if not pid:
        made.finish(0)
        made.write("of the child\n")
        os._exit(0)
    os.waitpid(pid, 0)
    seen = ""

    def all_read() -> bool:
        nonlocal seen
        seen += pipe.read()
        return seen.count("x\n") == 60

    wait_for(all_read, "all lines")
    time.sleep(0.1)
    assert "x" not in pipe.read()


def test_a_job_that_closes_every_descriptor_does_not_end_it(pipe: Pipe) -> None:
    pid = os.fork()
    if not pid:
        os.dup2(pipe.stream.fileno(), 1)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        made = Stream(sys.stdout)
        os.closerange(3, 1000)
        made.write("one\n")
        made.write("two\n")
        made.finish(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    wait_for(lambda: "two" in pipe.read(), "both lines")


def test_what_jobs_printed_comes_first(pipe: Pipe) -> None:
    made = Stream(pipe.stream)
    pipe.stream.write("printed\n")
    made.write("said\n")
    assert pipe.read() == "printed\nsaid\n"


def test_a_stream_that_is_none_or_closed_takes_everything(pipe: Pipe) -> None:
    pipe.stream.close()
    for each in (None, pipe.stream):
        made = Stream(each)
        made.write("a\n")
        made.finish()
        assert not made.isatty()


def test_a_record_that_cannot_be_formatted_says_where(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", pipe.stream)
    handler = LogHandler()
    handler.handle(logging.LogRecord("a", logging.ERROR, "f.py", 7, "%d", ("x",), None))
    assert "logged at f.py:7: '%d'" in pipe.read()


def test_records_as_lines_of_json(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", pipe.stream)
    monkeypatch.setattr(logging.root, "handlers", [])
    stream.log_to_stderr(logging.WARNING, as_lines_of_json=True)
    (handler,) = logging.root.handlers
    try:
        raise ValueError("no\x1b")
    except ValueError as error:
        caught = (type(error), error, error.__traceback__)
    handler.handle(logging.LogRecord("a.b", logging.ERROR, "f.py", 7, "é %s", ("\x1b",), caught))
    record = logging.LogRecord("a", logging.WARNING, "f.py", 7, "%d", ("x",), None)
    record.__dict__.update(job_uuid="u-1", job_name="", job_attempt=2)
    handler.handle(record)
    first, second = (json.loads(line) for line in pipe.read().splitlines())
    time_of_day = first.pop("time")
    assert datetime.fromisoformat(time_of_day).tzinfo is not None
    assert first.pop("traceback")[-1] == "ValueError: no\\x1b"
    assert first == {"status": "log", "level": "error", "logger": "a.b", "message": "é \x1b"}
    assert second["message"].startswith("'%d' cannot be formatted: TypeError")
    assert (second["job_uuid"], second["job_attempt"]) == ("u-1", 2)
    assert "job_name" not in second


def test_the_clock_of_a_line_is_the_one_that_times_are_read_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The system's coarse clock, which `strftime` reads, is behind in the first milliseconds."""
    monkeypatch.setattr(time, "time", lambda: 1_000_000_000.0)
    shown = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1_000_000_000))
    assert text.clock() == shown
