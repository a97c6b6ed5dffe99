"""Real processes in private folders: a side's producer, and its worker while it is measured."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.apps import PIDS, TIMES, WRITTEN

REPOSITORY = Path(__file__).resolve().parent.parent
_PATIENCE = 240.0
_OFTEN = 0.001
_PATH = "path"
"""The folder that comes first where modules are looked for."""


class BenchmarkError(Exception):
    """A process did not do what it was started for; holds what it printed."""


class NotHereError(Exception):
    """What a measure needs is not on this machine; holds why."""


def producing(module: str) -> tuple[str, ...]:
    """Give the command that dispatches with a module's producer."""
    return ("python", "-m", "benchmarks.apps.producing", module)


@dataclass(frozen=True, slots=True)
class Side:
    """One of those compared: how it dispatches and how its worker is started.

    Commands are looked for in `programs` first. A worker that is not `stopped` is killed when it
    has been measured, with all it started.
    """

    name: str
    producer: tuple[str, ...]
    worker: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    programs: Path = Path(sys.executable).parent
    stopped: bool = True
    prepare: tuple[str, ...] = ()
    """What makes its tables, where something has to before it dispatches."""
    checkout: Path = REPOSITORY
    """Where its qframe is; what runs on it is always ours."""


def our_side(
    driver: str,
    settings: str,
    *options: str,
    name: str = "qframe",
    environment: Mapping[str, str] | None = None,
    prepare: tuple[str, ...] = (),
) -> Side:
    """Give our side on a connection with such lines of settings; `options` are the worker's."""
    return Side(
        name,
        producing("benchmarks.apps.qframe_producer"),
        ("qframe", "work", driver, "--quiet", *options),
        files={
            "qframe.toml": f'default = "{driver}"\njobs = ["benchmarks.apps.qframe_jobs"]\n'
            f'[connections.{driver}]\ndriver = "{driver}"\n{settings}'
        },
        environment=environment or {},
        prepare=prepare,
    )


class Worker:
    """A worker process while it runs, in a process group of its own."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self._process = process
        self._output = output
        self.pid = process.pid

    def check(self) -> None:
        """Raise `BenchmarkError` when it has ended with an error."""
        if self._process.poll():
            raise BenchmarkError(self._output.read_text(errors="replace"))

    def cpu_seconds(self) -> float:
        """Give the processor time of all its threads so far, in the scheduler's own nanoseconds."""
        total = 0
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
            for task in Path(f"/proc/{self.pid}/task").iterdir():
                total += int((task / "schedstat").read_text().split()[0])
        return total / 1e9

    def memory(self) -> dict[str, float]:
        """Give its proportional, resident and own memory in MB."""
        found = {}
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, kilobytes = line.split(":")
            found[name] = int(kilobytes.split()[0]) / 1024
        return {
            "pss": found["Pss"],
            "rss": found["Rss"],
            "own": found["Private_Clean"] + found["Private_Dirty"],
        }

    def stop(self) -> None:
        """End it, if it has not ended itself."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it and what it started, at once."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


@dataclass(frozen=True, slots=True)
class Drained:
    """How many jobs a second a worker ran, and the seconds of processor time it used for each.

    The second number hardly changes when other programs want the processor too.
    """

    rate: float
    cpu: float


class Place:
    """A private folder in which one side works; gone at the end."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.folder = Path(tempfile.mkdtemp(prefix="qframe-bench-"))
        (self.folder / _PATH).mkdir()
        (self.folder / _PATH / "qframe").symlink_to(side.checkout / "qframe")
        for name, text in side.files.items():
            (self.folder / name).write_text(text)

    def __enter__(self) -> Self:
        """Give the place."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def check(self) -> None:
        """Raise `NotHereError` unless the side's programs are here and can dispatch."""
        self._command(self.side.worker)
        try:
            self.produce("many", 1)
        except BenchmarkError as error:
            raise NotHereError(str(error).strip().splitlines()[-1]) from error

    def prepare(self) -> None:
        """Make the side's tables."""
        if self.side.prepare:
            self._output(self._command(self.side.prepare), ())

    def produce(self, *arguments: object) -> float:
        """Run the side's producer and give what it measured."""
        return self._run(self._command(self.side.producer), arguments)

    def measures(self, *arguments: object) -> Any:  # noqa: ANN401 (the producer's own)
        """Run the side's producer and give all that it measured."""
        return json.loads(self._output(self._command(self.side.producer), arguments))

    def measured(self, module: str, *arguments: object, seconds: float = _PATIENCE) -> Any:  # noqa: ANN401 (the module's own)
        """Run a module of ours to its end and give the JSON it prints."""
        return json.loads(self._output((sys.executable, "-m", module), arguments, seconds))

    def run(self, module: str, *arguments: object) -> float:
        """Run a module of ours to its end and give the number it prints."""
        return self._run((sys.executable, "-m", module), arguments)

    def _run(self, command: Sequence[str], arguments: Sequence[object]) -> float:
        return float(json.loads(self._output(command, arguments)))

    def _output(
        self, command: Sequence[str], arguments: Sequence[object], seconds: float = _PATIENCE
    ) -> str:
        try:
            done = subprocess.run(
                [*command, *map(str, arguments)],
                cwd=self.folder,
                env=self._environment(),
                capture_output=True,
                text=True,
                check=False,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired as error:
            raise BenchmarkError(f"{self.side.name}: not done in {seconds:g} s") from error
        if done.returncode:
            raise BenchmarkError(f"{self.side.name}: {done.stdout}{done.stderr}")
        return done.stdout

    @contextlib.contextmanager
    def working(self, *options: str, **environment: str) -> Iterator[Worker]:
        """Run the side's worker."""
        output = self.folder / "worker.log"
        with output.open("ab") as log:
            process = subprocess.Popen(
                [*self._command(self.side.worker), *options],
                cwd=self.folder,
                env={**self._environment(), **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        worker = Worker(process, output)
        try:
            yield worker
        finally:
            if self.side.stopped:
                worker.stop()
            else:
                worker.kill()

    def written(self) -> int:
        """Give how many jobs have run here so far."""
        try:
            return (self.folder / WRITTEN).stat().st_size
        except FileNotFoundError:
            return 0

    def pids(self) -> list[int]:
        """Give the processes that jobs noted."""
        return [int(line) for line in (self.folder / PIDS).read_text().split()]

    def times_of(self, command: str, count: int, seed: int) -> list[float]:
        """Let jobs note the time since their moment; before them run three that warm up."""
        self.produce("many", 1)
        with self.working() as worker:
            self.wait_for(2, worker)
            self.produce(command, count, seed)
            self.wait_for(3 + count, worker)
        return self.times()

    def times(self) -> list[float]:
        """Give what the jobs noted, in seconds."""
        return [float(line) for line in (self.folder / TIMES).read_text().split()]

    def wait_for(self, count: int, worker: Worker) -> tuple[float, int]:
        """Wait until `count` jobs have run here in all; give when that was seen, and how many."""
        deadline = time.perf_counter() + _PATIENCE
        while (written := self.written()) < count:
            worker.check()
            if time.perf_counter() > deadline:
                raise BenchmarkError(f"{self.side.name}: {written} of {count} jobs have run")
            time.sleep(_OFTEN)
        return time.perf_counter(), written

    def drain(self, count: int, *options: str, after: int = 1) -> Drained:
        """Run a worker for the next `count` jobs, and give what the jobs after the first ones cost.

        Counted from when the bytes of `after` were seen, so starting an interpreter is not in it.
        """
        before = self.written()
        with self.working(*options) as worker:
            first, begun = self.wait_for(before + after, worker)
            cpu = worker.cpu_seconds()
            last, ended = self.wait_for(before + count, worker)
            cpu = worker.cpu_seconds() - cpu
        jobs = max(1, ended - begun)  # a few are done between two looks
        return Drained(jobs / max(_OFTEN, last - first), cpu / jobs)

    def drain_by(self, workers: int, count: int) -> float:
        """Run several worker processes for the next jobs; give how many a second they ran.

        Each one's first job waits until all have one, and until then nothing counts as run.
        """
        before = self.written()
        with contextlib.ExitStack() as stack:
            gate = {"BENCH_GATE": str(workers)}
            one, *_ = [stack.enter_context(self.working(**gate)) for _ in range(workers)]
            first, begun = self.wait_for(before + 1, one)
            last, ended = self.wait_for(before + count, one)
        return max(1, ended - begun) / max(_OFTEN, last - first)

    def _command(self, command: Sequence[str]) -> list[str]:
        program, *arguments = command
        here = os.pathsep.join((str(self.side.programs), os.environ.get("PATH", os.defpath)))
        found = shutil.which(program, path=here)
        if found is None:
            raise NotHereError(f"there is no {program} here")
        return [found, *arguments]

    def _environment(self) -> dict[str, Any]:
        return {
            **{k: v for k, v in os.environ.items() if not k.startswith(("QFRAME_", "BENCH_"))},
            **self.side.environment,
            "PYTHONPATH": os.pathsep.join((str(self.folder / _PATH), str(REPOSITORY))),
        }
