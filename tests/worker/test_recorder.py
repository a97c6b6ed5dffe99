"""The flight recorder: what its parts keep and tell; real processes are few, and at the end."""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import math
import mmap
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qframe.contracts.history import History
from qframe.contracts.recording import UsedPoint
from qframe.exceptions import JobTimedOut
from qframe.worker.pool.scoreboard import WorkerScore
from qframe.worker.recorder import isolated, pooled, stacks, telling
from qframe.worker.recorder.cgroup import MemoryEvents
from qframe.worker.recorder.memory import LINES, LONGEST_STACK, RING, STACKS, JobRing
from qframe.worker.recorder.use import ProcessUse
from qframe.worker.recorder.watch import DumpFile, ProcessWatch
from tests.support.process import Project, wait_for


@pytest.fixture
def ring() -> JobRing:
    return JobRing(mmap.mmap(-1, RING))


def record(text: object, *arguments: object, error: BaseException | None = None) -> Any:
    about = None if error is None else (type(error), error, None)
    return logging.LogRecord("app", logging.INFO, "x.py", 1, text, arguments, about)


class Rude:
    def __str__(self) -> str:
        raise ValueError("no text")


# -- log lines and stacks ------------------------------------------------------------------------


def test_the_last_lines_are_kept_and_those_of_an_earlier_job_are_not_the_jobs(
    ring: JobRing,
) -> None:
    for number in range(LINES + 5):
        ring.note(record("line %d", number))
    kept = [text for _, text in ring.lines(0.001)]
    assert kept == [f"INFO app: line {number}" for number in range(5, LINES + 5)]
    began = time.monotonic()
    assert ring.lines(began) == []
    ring.note(record("of the next"))
    assert [text for _, text in ring.lines(began)] == ["INFO app: of the next"]
    assert ring.lines(0) == [], "it has not begun"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (record("x" * 10_000_000), "INFO app: xxxx"),
        (record("two\nlines\x00and %s", "\udc80"), "two lines\\x00and"),
        (record(b"\xff\x00".decode("latin-1")), "ÿ\\x00"),
        (record("%d", "no number"), "INFO app: %d"),
        (record(Rude()), "INFO app: (no message)"),
        (record("failed", error=ValueError("why")), "failed (ValueError: why)"),
        (record("\U0001f600" * 1000), "\U0001f600\U0001f600"),
    ],
)
def test_hostile_lines_are_bounded_and_printable(ring: JobRing, given: Any, kept: str) -> None:
    began = time.monotonic()
    ring.note(given)
    found = telling.told(1, "killed", began, ring.lines(began), (), telling.Used())
    (line,) = found.log
    assert kept in line
    assert len(line) <= 500
    assert line.isprintable()


def test_a_clock_that_is_no_time_harms_nothing(ring: JobRing) -> None:
    for moment in (math.nan, math.inf, -1e300):
        given = record("odd")
        given.created = moment
        ring.note(given)
    lines = ring.lines(0.001)
    found = telling.told(1, "killed", 1.0, lines, (), telling.Used())
    assert [line[-13:] for line in found.log] == ["INFO app: odd"] * 3


def test_an_entry_that_was_not_finished_is_left_out(ring: JobRing) -> None:
    ring.note(record("whole"))
    ring.saw(b"x.py:1 f")

    class Ends(bytes):
        def __len__(self) -> int:
            raise KeyboardInterrupt  # between the emptied head and the new one

    with pytest.raises(KeyboardInterrupt):
        ring._put(ring_line(), 64, Ends(b"half"), (time.monotonic(), 1.0, 4))
    assert ring.lines(0.001) == []
    assert [calls for _, calls in ring.stacks(0.001)] == [["x.py:1 f"]]


def ring_line() -> Any:
    from qframe.worker.recorder import memory

    return memory._LINE


def test_the_last_stacks_are_kept_and_bounded(ring: JobRing) -> None:
    assert ring.beat == 0
    for number in range(STACKS + 2):
        ring.saw(b"x.py:%d f" % number)
    assert [calls[0] for _, calls in ring.stacks(0.001)] == [
        f"x.py:{number} f" for number in range(2, STACKS + 2)
    ]
    assert ring.beat > 0
    ring.saw(b"y" * 100_000)
    assert len(ring.stacks(0.001)[-1][1][0]) == LONGEST_STACK


def test_a_stack_begins_at_the_call_and_ends_before_qframe() -> None:
    def inner() -> bytes:
        return stacks.of_frame(sys._getframe())

    first, second, *_ = inner().decode().splitlines()
    assert first.endswith("<locals>.inner")
    assert second.startswith(f"{__file__}:")


def test_the_stack_of_a_waiting_task_names_each_of_its_coroutines() -> None:
    async def deep() -> None:
        await asyncio.sleep(60)

    async def job() -> None:
        await deep()

    async def main() -> bytes:
        task = asyncio.create_task(job())
        await asyncio.sleep(0)
        try:
            return stacks.of_task(task)
        finally:
            task.cancel()

    calls = asyncio.run(main()).decode().splitlines()
    assert [call.rpartition(".")[2] for call in calls[-2:]] == ["deep", "job"]
    assert stacks.place_of(calls).startswith("in asyncio.sleep at test_recorder.py:")


def test_the_current_thread_of_what_faulthandler_wrote_is_read() -> None:
    with tempfile.TemporaryFile() as file:
        other = threading.Event()
        thread = threading.Thread(target=other.wait)
        thread.start()
        faulthandler.dump_traceback(file, all_threads=True)
        other.set()
        thread.join()
        file.seek(0)
        calls = stacks.of_dump(file.read().decode())
    assert calls[0].startswith(f"{__file__}:")
    assert not any(" wait" in call for call in calls), "the other thread's"
    others = 'Thread 0x2 (most recent call first):\n  File "b.py", line 2 in g\n\n'
    current = 'Current thread 0x1 (most recent call first):\n  File "a.py", line 1 in f\n\n'
    assert stacks.of_dump(others + current + others) == ["a.py:1 f"]
    for odd in ("", "Stack (most recent call first):", "\0\n  File x", '  File "a", line 1 in f'):
        assert stacks.of_dump(odd) == []


@pytest.mark.parametrize(
    ("calls", "place"),
    [
        (["/app/import.py:88 handle"], "in handle at import.py:88"),
        (
            ["/x/site-packages/pandas/io/c.py:5 read", "/x/site-packages/pandas/io/r.py:9 read_csv",
             "/app/import.py:88 Import.handle"],
            "in pandas.read_csv at import.py:88",
        ),
        (["/usr/lib/python3.12/json/decoder.py:3 JSONDecoder.decode", "/app/a b.py:1 f"],
         "in json.decode at a b.py:1"),
        (["/x/site-packages/numpy/core.py:5 dot"], "in numpy.dot"),
        (["nonsense", ""], ""),
        ([], ""),
    ],
)  # fmt: skip
def test_the_place_is_in_the_applications_code(calls: list[str], place: str) -> None:
    assert stacks.place_of(calls) == place


# -- memory and processor ------------------------------------------------------------------------


def test_a_process_is_read_without_any_right() -> None:
    use = ProcessUse(os.getpid())
    use.look(10.0)
    (point,) = use.curve(0.0, 12.0)
    if sys.platform == "linux":
        assert point.ago == 2.0
        assert point.megabytes > 5
    gone = ProcessUse(2**22 + 1)
    gone.look(1.0)
    assert gone.curve(0.0, 1.0) == ()


def test_the_curve_is_bounded_and_keeps_its_beginning_and_its_rise() -> None:
    use = ProcessUse(0)
    for second in range(5000):
        use.add(float(second), second * 2.0, second * 0.5)
    curve = use.curve(0.0, 5000.0)
    assert len(curve) <= 121
    assert curve[0].ago == 5000.0
    assert [each.ago for each in curve[-3:]] == [3.0, 2.0, 1.0]
    assert curve[-1].processor == 0.5
    assert use.rise(0.0) == pytest.approx(2.0)
    assert use.rise(4999.5) == 0.0, "one point is no rise"
    assert len(use.curve(4990.0, 5000.0)) == 10, "the jobs before it are not its own"


def test_the_peak_at_the_end_counts_only_if_it_is_new() -> None:
    use = ProcessUse(0)
    use.add(1.0, 100.0, 0.0)
    use.ended(2.0, 300.0, 1.0)
    assert use.curve(0.0, 2.0)[-1] == UsedPoint(0.0, 300.0, 1.0)
    use.add(3.0, 50.0, 1.0)
    use.ended(4.0, 300.0, 2.0)
    assert use.curve(0.0, 4.0)[-1].megabytes == 50.0


def cgroup(root: Path, version: int, path: str = "/box/job") -> MemoryEvents:
    proc = root / "proc"
    if version == 2:
        proc.write_text(f"0::{path}\n")
    else:
        proc.write_text(f"9:name=systemd:/\n4:memory:{path}\n0::/\n")
    return MemoryEvents(root / "mount", proc)


def test_the_events_of_version_2_and_the_least_limit_above_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "mount" / "box" / "job"
    folder.mkdir(parents=True)
    for each, most in ((folder, "max"), (folder.parent, str(512 << 20))):
        (each / "memory.max").write_text(f"{most}\n")
        (each / "memory.events").write_text("low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n")
    events = cgroup(tmp_path, 2)
    events.look(1.0)
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 2\noom_kill 2\n")
    events.look(5.0)
    assert events.since(2.0, 6.0) == {"max": 4, "oom": 1, "oom_kill": 1}
    assert events.since(5.5, 6.0) == {}, "before the job began"
    assert events.limit() == 512


def test_the_events_of_version_1_are_read_also_in_a_container(tmp_path: Path) -> None:
    root = tmp_path / "mount" / "memory"
    root.mkdir(parents=True)
    (root / "memory.limit_in_bytes").write_text("268435456")
    (root / "memory.failcnt").write_text("4\n")
    (root / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    events = cgroup(tmp_path, 1, "/docker/of-the-host")
    events.look(1.0)
    (root / "memory.failcnt").write_text("9\n")
    (root / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 1\noom_kill 1\n")
    assert events.since(2.0, 3.0) == {"oom_kill": 1, "max": 5}
    assert events.limit() == 256


@pytest.mark.parametrize("text", ["", "nonsense\n", "0::/../../etc\n", "4:memory:/x\n"])
def test_where_nothing_can_be_read_nothing_is_known(tmp_path: Path, text: str) -> None:
    (tmp_path / "proc").write_text(text)
    events = MemoryEvents(tmp_path / "mount", tmp_path / "proc")
    assert events.since(1.0, 2.0) == {}
    assert events.limit() > 100, "the machine's"
    assert MemoryEvents(tmp_path, tmp_path / "none").since(1.0, 2.0) == {}


# -- what is told --------------------------------------------------------------------------------


def test_the_sentence_says_how_much_memory_how_fast_and_where() -> None:
    curve = [UsedPoint(2.0, 1865.0, 1.0), UsedPoint(0.0, 1945.6, 1.0)]
    calls = ["/x/site-packages/pandas/io/r.py:9 read_csv", "/app/import.py:88 Import.handle"]
    used = telling.Used(curve, 40.3, {"oom_kill": 1}, 2048.0)
    found = telling.told(3, "killed by SIGKILL", 100.0, (), [(99.5, calls)], used)
    assert found.summary == (
        "killed by SIGKILL, while its cgroup ran out of memory, 1.9 GB of 2 GB and rising 40 MB/s, "
        "in pandas.read_csv at import.py:88"
    )
    late = telling.told(3, "killed by SIGKILL", 100.0, (), [(90.0, calls)], telling.Used())
    assert late.summary.endswith("10 s before in pandas.read_csv at import.py:88")
    assert telling.told(1, "exited", 1.0, (), (), telling.Used()).summary == "exited"


def test_equal_stacks_that_follow_each_other_are_one() -> None:
    seen = [(1.0, ["a"]), (2.0, ["b"]), (3.0, ["b"]), (4.0, ["a"]), (0.5, [])]
    found = telling.told(1, "killed", 5.0, (), seen, telling.Used())
    assert [(each.ago, each.calls) for each in found.stacks] == [
        ((1.0,), ("a",)), ((2.0, 3.0), ("b",)), ((4.0,), ("a",)),
    ]  # fmt: skip


def test_a_recording_is_bounded() -> None:
    seen = [(float(n), [f"{n} {m} " + "\\" * 300 for m in range(60)]) for n in range(1, 20)]
    lines = [(float(n), '"' * 500) for n in range(LINES)]
    curve = [UsedPoint(1.0, 1.0, 1.0)] * 120
    found = telling.told(1, "killed", 20.0, lines, seen, telling.Used(curve))
    kept = History().recorded(found).to_json()
    assert len(kept) < 40_000
    assert found.stacks, "the latest one stays"
    assert History.from_json(kept).recording == found
    assert json.loads(kept)
    together = telling.told(1, "killed", 20.0, lines, seen, telling.Used(curve), 1000)
    assert "in a chunk of 1,000 jobs" in together.summary
    assert len(json.dumps(together.fields())) < len(json.dumps(found.fields())) / 2


# -- asking for a stack --------------------------------------------------------------------------


@pytest.mark.skipif(not stacks.SIGNAL, reason="the system has no such signals")
def test_a_process_is_asked_only_if_it_can_take_the_signal(tmp_path: Path) -> None:
    faulthandler.unregister(stacks.SIGNAL)  # what a worker in this process may have left
    with (tmp_path / "dump").open("w+b") as file:
        dump = DumpFile(file.fileno(), 100)
        watch = ProcessWatch(os.getpid(), dump, MemoryEvents(tmp_path, tmp_path / "none"))
        watch.ask(1.0, file.fileno())  # without a handler it would end this process
        faulthandler.register(stacks.SIGNAL, file, all_threads=False)
        try:
            watch.ask(1.0, 0)  # another file
            assert dump.take() == ""
            watch.look_for_stack(10.0, 9.0, file.fileno())
            assert dump.take() == "", "it has just shown one itself"
            watch.look_for_stack(10.0, 8.0, file.fileno())
            written = wait_for(dump.take, "the stack")
        finally:
            faulthandler.unregister(stacks.SIGNAL)
        assert "test_recorder.py" in written
        assert dump.take() == "", "it is taken once"


def test_a_process_that_does_not_answer_is_not_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    with (tmp_path / "dump").open("w+b") as file:
        dump = DumpFile(file.fileno(), 0)
        watch = ProcessWatch(os.getpid(), dump, MemoryEvents(tmp_path, tmp_path / "none"))

        def send(what: int, _: int) -> bool:
            asked.append(what)
            return True

        monkeypatch.setattr(watch, "_send", send)
        watch.ask(1.0, 3)
        watch.look(2.0)
        watch.ask(2.0, 3)
        assert asked == [stacks.SIGNAL], "a stopped process would get them all at once"
        file.write(b"Stack (most recent call first):\n")
        file.flush()
        watch.look(3.0)
        watch.ask(3.0, 3)
        assert asked == [stacks.SIGNAL] * 2


class Watched:
    """Stands in for the watch of a process, and notes what is asked of it."""

    def __init__(self, *, is_computing: bool) -> None:
        self.use = SimpleNamespace(is_computing=is_computing)
        self.asked: list[tuple[float, str]] = []
        self.now = 0.0

    def look(self, now: float) -> None:
        self.now = now

    def begin(self, _: int) -> None:
        self.asked.append((self.now, "begin"))

    def look_for_stack(self, now: float, beat: float, _: int) -> None:
        self.asked.append((now, f"stack since {beat:g}"))


@pytest.mark.parametrize(
    ("is_computing", "asked"),
    [
        (True, [(1, "begin"), *((second, "stack since 11") for second in (2, 3, 4))]),
        (False, [(3, "begin"), (4, "stack since 13")]),
    ],
)
def test_a_job_that_waits_is_not_interrupted_at_once(
    tmp_path: Path, *, is_computing: bool, asked: list[tuple[float, str]]
) -> None:
    events = MemoryEvents(tmp_path, tmp_path / "none")
    recorder = isolated.JobRecorder(events, 0, keeps_log=False)
    try:
        recorder.begin(10.0)
        watch = Watched(is_computing=is_computing)
        recorder._watch = watch  # type: ignore[assignment] # stands in for it
        for second in range(1, 5):
            recorder.look(10.0 + second)
        assert watch.asked == [(10 + second, what) for second, what in asked]
    finally:
        recorder.close()


# -- in a worker that lives on ---------------------------------------------------------------------


def test_a_worker_records_timeouts_and_a_lack_of_memory_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pooled, "write_stacks_to", lambda *_, **__: None)
    score = WorkerScore.create()
    (job,) = score.jobs
    job.running(b"fence", 5.0)
    recorder = pooled.WorkerRecorder(score, lambda: [(job, b"/app/x.py:7 f")], keeps_log=False)
    try:
        for ring, stack in recorder._look():
            ring.saw(stack)
        job.ring.note(record("was here"))
        assert recorder.recorded(job, ValueError("no"), 1) is None
        late = recorder.recorded(job, JobTimedOut("late"), 2)
        assert late is not None
        assert late.attempt == 2
        assert late.summary.startswith("timed out, ")
        assert late.summary.endswith("in f at x.py:7")
        assert [line[-8:] for line in late.log] == ["was here"]
        with pytest.raises(MemoryError) as raised:
            bytearray(1 << 60)
        lacks = recorder.recorded(job, raised.value, 2)
        assert lacks is not None
        assert "at test_recorder.py:" in lacks.summary, "where it was raised"
        assert len(lacks.stacks) == 2
    finally:
        recorder.stop()
        os.close(score.dump_number)
        score.close()


# -- with processes ------------------------------------------------------------------------------

JOBS = """
import logging, os, signal, time
from qframe import Queueable

log = logging.getLogger("app")


class Die(Queueable):
    seconds: float = 1.7
    alone: bool = False
    tries = 1

    def is_seen(self) -> bool:
        return self.alone or len(os.listdir("/proc/self/task")) > 1

    def handle(self) -> None:
        log.warning("about to %s", "die\\n")
        kept = bytearray(80_000_000)
        began = time.monotonic()
        while time.monotonic() < began + self.seconds or not self.is_seen():
            sum(range(1000))  # until its stacks are taken
        time.sleep(self.seconds / 5)
        os.kill(os.getpid(), signal.SIGKILL)


"""


def recorded(project: Project) -> Any:
    found = project.failure().history.recording
    assert found is not None
    return found


@pytest.mark.parametrize(
    "options",
    [
        ["--isolate"],
        ["--workers", 1],
        pytest.param(["--workers", 1, "--concurrency", 2], marks=pytest.mark.slow),
    ],
)
def test_a_killed_job_has_left_its_lines_its_stack_and_its_memory(
    project: Project, options: list[Any]
) -> None:
    project.write("dying.py", JOBS)
    project.push("dying.Die")
    project.drain(*options)
    found = project.failure().history.recording
    assert found is not None
    assert found.attempt == 1
    assert found.summary.startswith("killed by SIGKILL, ")
    assert "in Die.handle at dying.py:" in found.summary
    (line,) = found.log
    assert line.endswith("WARNING app: about to die")
    assert "dying.py" in found.stacks[0].calls[0]
    assert found.curve[-1].megabytes > 80


def test_nothing_is_kept_where_that_is_switched_off(project: Project) -> None:
    project.write("dying.py", JOBS)
    project.push("dying.Die", {"seconds": 0, "alone": True})
    project.work(
        "--isolate", "--stop-when-empty", environment={"QFRAME_WORKER__RECORDER": "off"}
    ).wait()
    assert "SIGKILL" in project.failure().exception
    assert project.failure().history.recording is None
