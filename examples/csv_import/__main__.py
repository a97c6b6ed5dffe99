"""Import a large CSV file with bad rows in it, by a batch: `python -m examples.csv_import`."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from examples.csv_import.jobs import import_file
from examples.csv_import.rows import LAST, read_slice, repair, write_file
from examples.csv_import.table import Table
from qframe import Batch, QueueManager, config, manager

ROOT = Path(__file__).parents[2]
QFRAME = Path(sys.executable).with_name("qframe")
LINES = 500
"""So many are imported by one job."""
WORKERS = 2
PATIENCE = 90


def main() -> int:
    """Import the file; 0 when the table is what a plain loop makes of it."""
    parser = argparse.ArgumentParser(prog="python -m examples.csv_import", description=__doc__)
    parser.add_argument("--last", type=int, default=LAST, help="only characters before this code")
    last = parser.parse_args().last
    if not 0x100 <= last <= LAST:
        parser.error(f"--last must be 256 to {LAST}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends it as Ctrl-C does
    try:
        with tempfile.TemporaryDirectory(prefix="csv_import-") as name:
            return demonstrate(Path(name).resolve(), last)
    except KeyboardInterrupt:
        print("interrupted; the workers have ended")
        return 130


def demonstrate(folder: Path, last: int) -> int:
    """Write the file, import it, repair it, retry what has failed, and compare."""
    settings = write_configuration(folder)
    manager.use(QueueManager(config.load(settings)))
    file, database = folder / "characters.csv", folder / "characters.sqlite3"
    print(f"wrote {write_file(file, last):,} lines, {file.stat().st_size / 1e6:.1f} MB")
    with closing(Table(database)) as table:
        began = time.monotonic()
        rows = import_file(file, database, LINES)
        print(f"dispatched a batch of {rows.total} jobs in {time.monotonic() - began:.2f} s")
        with running_workers(settings) as workers:
            rows = follow(rows, workers, lambda: {"catch", "finally"} <= table.notes().keys())
            print(f"after {time.monotonic() - began:.1f} s: {table.notes()['finally']}")
            print(f"  why: {table.notes()['catch']}")

            repair(file)
            subprocess.run(
                [str(QFRAME), "retry-batch", rows.id, "--config", str(settings)], check=True
            )
            rows = follow(rows, workers, lambda: "then" in table.notes())
            print(f"after {time.monotonic() - began:.1f} s: {rows.done} done, {rows.failed} failed")
        manager.default().close()
        return report(table, file)


def write_configuration(folder: Path) -> Path:
    """Write the folder's own qframe.toml; its strings are TOML because JSON's are."""
    file = folder / "qframe.toml"
    url = f"sqlite:///{folder / 'queue.sqlite3'}"
    file.write_text(
        f"root = {json.dumps(str(ROOT))}\n"
        'default = "database"\n'
        'jobs = ["examples.csv_import.jobs"]\n'
        "\n"
        "[connections.database]\n"
        f"url = {json.dumps(url)}\n",
        encoding="utf-8",
    )
    return file


@contextmanager
def running_workers(settings: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start the worker processes, and stop them whatever happens."""
    command = [str(QFRAME), "work", "--config", str(settings)]
    with (settings.parent / "workers.log").open("ab") as log:
        workers = [subprocess.Popen(command, stdout=log) for _ in range(WORKERS)]
        try:
            yield workers
        finally:
            for worker in workers:
                worker.terminate()  # finishes its job, then stops
            for worker in workers:
                worker.wait()


def follow(
    rows: Batch, workers: Sequence[subprocess.Popen[bytes]], is_told: Callable[[], bool]
) -> Batch:
    """Print the progress of a batch until what follows it has run."""
    told = int(4 * rows.fresh().progress)
    until = time.monotonic() + PATIENCE
    while not is_told():
        rows = rows.fresh()
        quarter = int(4 * rows.progress)
        if quarter > told:
            print(f"{rows.done + rows.failed} of {rows.total} jobs", flush=True)
        told = quarter
        if time.monotonic() > until or all(worker.poll() is not None for worker in workers):
            sys.exit(f"the workers ended, or are too slow: {rows!r}")
        time.sleep(0.05)
    return rows.fresh()


def report(table: Table, file: Path) -> int:
    """Tell what is in the table, and compare it with what a plain loop reads."""
    rows, bad = table.rows(), table.bad()
    print(f"{'rows imported':<16}{len(rows):,}")
    print(
        f"{'bad rows':<16}{bad.total():,}: {', '.join(f'{bad[why]} {why}' for why in sorted(bad))}"
    )
    header = len(file.read_bytes().partition(b"\n")[0]) + 1
    whole = read_slice(file, header, file.stat().st_size)
    categories = Counter(row.category for row in whole.rows)
    wrong = [
        name
        for name, found, wanted in (
            ("rows", rows, whole.rows),
            ("bad rows", bad, whole.bad),
            ("categories", json.loads(table.notes()["then"]), dict(categories)),
        )
        if found != wanted
    ]
    print(f"differs: {', '.join(wrong)}" if wrong else "matches the direct computation")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
