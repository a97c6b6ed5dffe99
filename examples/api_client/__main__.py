"""Ask a rate-limited service through the queue: `python -m examples.api_client`."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

from examples.api_client.jobs import FetchWeather
from examples.api_client.server import PER_SECOND, Service
from qframe import QueueManager, bulk, config, manager

ROOT = Path(__file__).parents[2]
WORKERS = 3
PATIENCE = 90


def main() -> int:
    """Fetch everything; 0 when all came."""
    parser = argparse.ArgumentParser(prog="python -m examples.api_client", description=__doc__)
    parser.add_argument("--stations", type=int, default=60, help="how many to ask about")
    stations = parser.parse_args().stations
    if stations < 1:
        parser.error("--stations must be 1 or more")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends it as Ctrl-C does
    try:
        with tempfile.TemporaryDirectory(prefix="api_client-") as name, Service() as service:
            return fetch(Path(name).resolve(), service, stations)
    except KeyboardInterrupt:
        print("interrupted; the workers have ended")
        return 130


def fetch(folder: Path, service: Service, stations: int) -> int:
    """Dispatch, work, report."""
    settings = write_configuration(folder)
    manager.use(QueueManager(config.load(settings)))
    weather = folder / "weather"
    weather.mkdir()
    bulk(FetchWeather(url=service.url, station=n, folder=weather) for n in range(stations))
    began = time.monotonic()
    with running_workers(settings):
        wait_for(weather, stations, began + PATIENCE)
    took = time.monotonic() - began
    failed = len(manager.default().failed_store().page(stations))
    manager.default().close()
    return report(weather, stations, service, took, failed)


def write_configuration(folder: Path) -> Path:
    """Write the folder's own qframe.toml; its strings are TOML because JSON's are."""
    file = folder / "qframe.toml"
    url = f"sqlite:///{folder / 'queue.sqlite3'}"
    file.write_text(
        f"root = {json.dumps(str(ROOT))}\n"
        'default = "database"\n'
        'jobs = ["examples.api_client.jobs"]\n'
        "\n"
        "[connections.database]\n"
        f"url = {json.dumps(url)}\n",
        encoding="utf-8",
    )
    return file


@contextmanager
def running_workers(settings: Path) -> Iterator[None]:
    """Start the worker processes, and stop them whatever happens."""
    qframe = Path(sys.executable).with_name("qframe")
    command = [str(qframe), "work", "--quiet", "--config", str(settings)]
    workers = [subprocess.Popen(command) for _ in range(WORKERS)]
    try:
        yield
    finally:
        for worker in workers:
            worker.terminate()  # finishes its job, then stops
        for worker in workers:
            worker.wait()


def wait_for(weather: Path, stations: int, until: float) -> None:
    """Wait for a file a station, or until some have failed and nothing is left to do."""
    queue = manager.default().connection()
    while time.monotonic() < until:
        if len(list(weather.glob("*.json"))) == stations or not queue.size():
            return
        time.sleep(0.05)


def report(weather: Path, stations: int, service: Service, took: float, failed: int) -> int:
    """Tell what came, what it took, and what the service saw."""
    rows = [json.loads(file.read_text()) for file in weather.glob("*.json")]
    waits = sum(row["waits"] for row in rows)
    again = sum(row["attempts"] - 1 for row in rows)
    refused = service.answers[HTTPStatus.TOO_MANY_REQUESTS]
    down = service.answers[HTTPStatus.SERVICE_UNAVAILABLE]
    print(f"stations  {len(rows)} fetched in {took:.1f} s by {WORKERS} workers, {failed} failed")
    print(f"requests  {service.answers.total()}, of them {down} while the service was down")
    print(f"refused   {refused}: the service allows {PER_SECOND} in a second")
    print(f"jobs      waited {waits} times, at no try's cost; were tried again {again} times")
    return int(len(rows) < stations)


if __name__ == "__main__":
    sys.exit(main())
