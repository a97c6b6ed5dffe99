"""Do the orders of a shop, a chain each: `python -m examples.order_pipeline`."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from examples.order_pipeline.jobs import place
from examples.order_pipeline.shop import STOCK, Order, Shop, expected, some_orders
from qframe import QueueManager, config, manager

ROOT = Path(__file__).parents[2]
WORKERS = 2
PATIENCE = 90


def main() -> int:
    """Do the orders; 0 when each has ended as it must."""
    parser = argparse.ArgumentParser(prog="python -m examples.order_pipeline", description=__doc__)
    parser.add_argument("--orders", type=int, default=200, help="how many there are")
    count = parser.parse_args().orders
    if not 1 <= count <= 200:
        parser.error("--orders must be 1 to 200")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends it as Ctrl-C does
    try:
        with tempfile.TemporaryDirectory(prefix="order_pipeline-") as name:
            return demonstrate(Path(name).resolve(), some_orders(count))
    except KeyboardInterrupt:
        print("interrupted; the workers have ended")
        return 130


def demonstrate(folder: Path, orders: Sequence[Order]) -> int:
    """Dispatch, work, report and check."""
    settings = write_configuration(folder)
    manager.use(QueueManager(config.load(settings)))
    file = folder / "shop.sqlite3"
    with closing(Shop(file)) as shop:
        shop.open_with(orders)
        for order in orders:
            place(file, order.id)
        print(f"dispatched {len(orders)} chains of 3 links each")
        began = time.monotonic()
        with running_workers(settings) as workers:
            wait_until_done(workers, began + PATIENCE)
        took = time.monotonic() - began
        failed = manager.default().failed_store().count()
        manager.default().close()
        return report(shop, orders, took, failed)


def write_configuration(folder: Path) -> Path:
    """Write the folder's own qframe.toml; its strings are TOML because JSON's are."""
    file = folder / "qframe.toml"
    url = f"sqlite:///{folder / 'queue.sqlite3'}"
    file.write_text(
        f"root = {json.dumps(str(ROOT))}\n"
        'default = "database"\n'
        'jobs = ["examples.order_pipeline.jobs"]\n'
        "\n"
        "[connections.database]\n"
        f"url = {json.dumps(url)}\n",
        encoding="utf-8",
    )
    return file


@contextmanager
def running_workers(settings: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start the worker processes, and stop them whatever happens."""
    qframe = Path(sys.executable).with_name("qframe")
    command = [str(qframe), "work", "--config", str(settings)]
    with (settings.parent / "workers.log").open("ab") as log:
        workers = [subprocess.Popen(command, stdout=log) for _ in range(WORKERS)]
        try:
            yield workers
        finally:
            for worker in workers:
                worker.terminate()  # finishes its job, then stops
            for worker in workers:
                worker.wait()


def wait_until_done(workers: Sequence[subprocess.Popen[bytes]], until: float) -> None:
    """Wait until there is no job left.

    That will do: a link goes in the same step in which the next one comes, so there is no moment
    when a chain that goes on has no job.
    """
    queue = manager.default().connection()
    while left := queue.size():
        if time.monotonic() > until or all(worker.poll() is not None for worker in workers):
            sys.exit(f"the workers ended, or are too slow: {left} jobs are left")
        time.sleep(0.05)


def report(shop: Shop, orders: Sequence[Order], took: float, failed: int) -> int:
    """Tell how the orders ended, and what is not as it must be."""
    states = {order.id: shop.state(order) for order in orders}
    steps = {order.id: shop.steps(order) for order in orders}
    for state, count in Counter(states.values()).most_common():
        print(f"{state:<24}{count}")
    links = sum(len(each) for each in steps.values())
    print(f"{'failed jobs':<24}{failed}")
    print(f"{'steps':<24}{links} in {took:.1f} s by {WORKERS} workers")

    wrong = [
        f"order {order.id}: {found} is not {wanted}"
        for order in orders
        if (found := (states[order.id], steps[order.id])) != (wanted := expected(order))
    ]
    sold = Counter[str]()
    for order in orders:
        sold[order.item] += order.quantity * (states[order.id] == "done")
    left = shop.stock()
    wrong += [
        f"{left[item]} of {item} are left, not {count - sold[item]}"
        for item, count in STOCK.items()
        if left[item] != count - sold[item]
    ]
    if failed != sum(state != "done" for state in states.values()):
        wrong.append(f"{failed} jobs have failed")
    print(
        "\n".join(wrong) or "every order has ended as it must, step by step, and the stock is right"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
