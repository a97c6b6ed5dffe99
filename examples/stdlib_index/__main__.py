"""Index the running Python's standard library: `python -m examples.stdlib_index`."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples.stdlib_index import report
from examples.stdlib_index.jobs import IndexFile
from examples.stdlib_index.results import Results
from examples.stdlib_index.source import source_files
from qframe import QueueManager, bulk, config, dispatch, manager
from qframe.contracts import Queue

ROOT = Path(__file__).parents[2]
LARGE, DEFAULT = QUEUES = ("large", "default")
WORKERS = 2


def main() -> int:
    """Run the demonstration; 0 when the queue and a plain loop found the same."""
    parser = argparse.ArgumentParser(prog="python -m examples.stdlib_index", description=__doc__)
    parser.add_argument("--limit", type=int, default=0, help="only the N smallest files")
    parser.add_argument("--folder", type=Path, help="work in this new folder and leave it there")
    options = parser.parse_args()
    if options.limit < 0:
        parser.error("--limit must not be negative")
    if options.folder is not None and options.folder.exists():
        parser.error(f"{options.folder} is there already")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends it as Ctrl-C does
    try:
        with working_folder(options.folder) as folder:
            code = demonstrate(folder, options.limit)
        kept = options.folder or Path("demo")
        if not options.folder:
            print("to look at it:")
            print(f"  {shown('python')} -m examples.stdlib_index --folder {kept}")
        print(f"  {shown('qframe')} web --config {kept / 'qframe.toml'}")
        return code
    except KeyboardInterrupt:
        print("interrupted; the workers have ended")
        return 130


def shown(command: str) -> str:
    """Give a command of this environment as one would type it here."""
    there = Path(sys.executable).with_name(command)
    here = Path.cwd()
    return str(there.relative_to(here) if there.is_relative_to(here) else there)


@contextmanager
def working_folder(wanted: Path | None) -> Iterator[Path]:
    """Make the folder that is wanted, or one that is gone at the end."""
    if wanted is not None:
        wanted.mkdir(parents=True)
        yield wanted.resolve()
    else:
        with tempfile.TemporaryDirectory(prefix="stdlib_index-") as name:
            yield Path(name).resolve()


def demonstrate(folder: Path, limit: int) -> int:
    """Dispatch, work, report and compare."""
    console = Console(highlight=False)
    settings = write_configuration(folder)
    manager.use(QueueManager(config.load(settings)))
    queue = manager.default().connection()
    failed_store = manager.default().failed_store()
    files = source_files(limit)

    with closing(Results(folder / "results.sqlite3")) as results:
        began = time.monotonic()
        push(files, folder / "results.sqlite3")
        print(f"dispatched {len(files):,} jobs in {time.monotonic() - began:.2f} s", flush=True)
        began = time.monotonic()
        with running_workers(settings) as workers:
            wait_until_done(console, queue, len(files), workers)
        seconds = time.monotonic() - began
        rows = results.all()

    failed = failed_store.page(limit=len(files))
    index = report.from_queue(rows, failed)
    report.show(index, rows, failed, seconds)
    differences = index.differences(report.without_queue(files))
    for difference in differences:
        print(f"differs: {difference}")
    if not differences:
        print("matches the direct computation")
    return int(bool(differences))


def write_configuration(folder: Path) -> Path:
    """Write the folder's own qframe.toml; its strings are TOML because JSON's are."""
    file = folder / "qframe.toml"
    url = f"sqlite:///{folder / 'queue.sqlite3'}"
    file.write_text(
        f"root = {json.dumps(str(ROOT))}\n"
        'default = "database"\n'
        'jobs = ["examples.stdlib_index.jobs"]\n'
        "\n"
        "[connections.database]\n"
        f"url = {json.dumps(url)}\n"
        "retry_after = 3\n",
        encoding="utf-8",
    )
    return file


def push(files: Sequence[Path], results: Path) -> None:
    """Queue one job per file: the ten largest one by one, first in line, the rest in bulk."""
    for path in files[:10]:
        dispatch(IndexFile(path=path, results=results)).on_queue(LARGE).send()
    bulk((IndexFile(path=path, results=results) for path in files[10:]), DEFAULT)


@contextmanager
def running_workers(settings: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start the worker processes, and stop them whatever happens."""
    qframe = Path(sys.executable).with_name("qframe")
    command = [str(qframe), "work", "--queue", ",".join(QUEUES), "--config", str(settings)]
    with (settings.parent / "workers.log").open("ab") as log:
        workers = [subprocess.Popen(command, stdout=log) for _ in range(WORKERS)]
        try:
            yield workers
        finally:
            for worker in workers:
                worker.terminate()  # finishes its job, then stops
            for worker in workers:
                worker.wait()


def wait_until_done(
    console: Console, queue: Queue, total: int, workers: Sequence[subprocess.Popen[bytes]]
) -> None:
    """Show progress until no job is ready, running or waiting for its next try.

    `qframe work --stop-when-empty` would not do: it leaves the retries that are not yet due.
    """
    told = 0
    with Progress(
        TextColumn("indexing"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[delayed]} waiting for their next try"),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        bar = progress.add_task("", total=total, delayed=0)
        left = total
        while left:
            sizes = [queue.sizes(name) for name in QUEUES]
            left = sum(size.total for size in sizes)
            delayed = sum(size.delayed for size in sizes)
            progress.update(bar, completed=total - left, delayed=delayed)
            quarter = 4 * (total - left) // total
            if quarter > told and not console.is_terminal:
                print(f"{total - left:,} of {total:,} done", flush=True)
            told = quarter
            if left and all(worker.poll() is not None for worker in workers):
                sys.exit(f"the workers ended before the work did: {left:,} jobs are left")
            time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())
