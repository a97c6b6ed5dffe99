"""A shop that runs: Redis and SQLite, workers, failures, a batch, delayed jobs, and its page."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from qframe import Flow, QueueManager, Secret, batch, config, dispatch, manager
from qframe.operations import schedules
from qframe.operations.queues import pause
from qframe.schedules.rows import row_of
from scripts.screenshots import history, jobs
from tests.support.redis_server import RedisServer

_ROOT = Path(__file__).parents[2]
_PATIENCE = 60.0


@contextmanager
def open_shop(folder: Path) -> Iterator[str]:
    """Start all of it, and give the address of the page once there is something to see."""
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer(folder / "redis"))
        settings = _configure(folder, redis.url)
        shop = QueueManager(config.load(settings))
        stack.callback(shop.close)
        manager.use(shop)
        history.write(shop.connection("redis"))
        _plan(shop)
        _dispatch()
        for words in (
            ("work", "redis", "--queue", "mail,payments,webhooks", "--concurrency", "4"),
            ("work", "database", "--queue", "images,default", "--name", "pictures"),
            ("work", "database", "--queue", "reports", "--concurrency", "2", "--name", "reports"),
        ):
            stack.enter_context(_running(folder, settings, *words))
        _wait(lambda: _is_worked(shop), "the jobs to be done")
        _dispatch_more()
        page = stack.enter_context(_running(folder, settings, "web", "--port", "0"))
        yield _address(page)


def _configure(folder: Path, redis_url: str) -> Path:
    file = folder / "qframe.toml"
    database = f"sqlite:///{folder / 'queue.sqlite3'}"
    file.write_text(
        f"root = {json.dumps(str(_ROOT))}\n"
        'default = "redis"\n'
        'version = "2.4.2"\n'
        'jobs = ["scripts.screenshots.jobs"]\n\n'
        f'[connections.redis]\ndriver = "redis"\nurl = {json.dumps(redis_url)}\n\n'
        f'[connections.database]\ndriver = "database"\nurl = {json.dumps(database)}\n\n'
        '[web]\nname = "production"\ncolor = "red"\n'
    )
    return file


def _plan(shop: QueueManager) -> None:
    """Add schedules, as somebody would on the page."""
    rows = {
        "nightly report": ("daily_at 03:30", "Europe/Vienna"),
        "stock levels": ("every_five_minutes; between 8:00 20:00", "Europe/Vienna"),
        "weekly digest": ("weekly_on monday 8:00", "Europe/Vienna"),
        "invoices": ("monthly_on 1 6:15", "Europe/Vienna"),
        "heartbeat": ("every 30s", "UTC"),
    }
    data = {"page": 1}
    for name, (when, zone) in rows.items():
        row = row_of(job="shop.catalogue.RenderPage", data=data, when=when, timezone=zone)
        schedules.add(shop, shop.connection("database"), name, row)


def _dispatch() -> None:
    """Give the workers something to do, of which some fails."""
    for order in range(4000, 4420):
        address = f"customer{order}@example.com" if order % 40 else f"customer{order}"
        dispatch(jobs.SendReceipt(order=order, to=address)).on_connection("redis").send()
    for order in range(4000, 4080):
        card = jobs.ChargeCard(order=order, cents=order * 3, token=Secret(f"tok_{order}"))
        dispatch(card).on_connection("redis").send()
    for order in range(4000, 4090):
        dispatch(jobs.Deliver(order=order)).on_connection("redis").send()
    for number in range(60):
        picture = jobs.ResizeImage(path=f"uploads/{number}.png")
        dispatch(picture).on_connection("database").send()
    pages = (jobs.RenderPage(page=number) for number in range(40))
    batch(pages).name("winter catalogue").allow_failures().on_connection("database").dispatch()
    flow = Flow("order 4711").on_connection("database")
    charged = flow.add(jobs.RenderPage(page=1), name="charge the card")
    packed = flow.add(jobs.RenderPage(page=2), name="pack", after=[charged])
    invoice = flow.add(jobs.RenderPage(page=13), name="invoice", after=[charged])
    flow.add(jobs.RenderPage(page=3), name="say thanks", after=[packed, invoice])
    flow.dispatch()
    for year in (2024, 2025):
        dispatch(jobs.ExportYear(year=year)).on_connection("database").send()


def _dispatch_more() -> None:
    """Leave something that waits: one queue that nobody works, one that is paused."""
    for number in range(75):
        picture = jobs.ResizeImage(path=f"archive/{number}.png")
        dispatch(picture).on_connection("database").on_queue("archive").send()
    for order in range(5000, 5030):
        mail = jobs.SendReceipt(order=order, to=f"customer{order}@example.com")
        dispatch(mail).on_connection("redis").delay(600 + order % 7 * 60).send()
    pause(manager.default().connection("redis"), "newsletter", None)
    for order in range(12):
        mail = jobs.SendReceipt(order=order, to=f"reader{order}@example.com")
        dispatch(mail).on_connection("redis").on_queue("newsletter").send()


def _is_worked(shop: QueueManager) -> bool:
    names = ("mail", "payments", "webhooks")
    left = [shop.connection("redis").sizes(name).total for name in names]
    left.append(shop.connection("database").sizes("images").total)
    reports = shop.connection("database").sizes("reports").reserved
    return not any(left) and reports == 2  # noqa: PLR2004 (both run)


@contextmanager
def _running(
    folder: Path, settings: Path, *words: str
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Start a command, and end it whatever happens."""
    command = [str(Path(sys.executable).with_name("qframe")), *words, "--config", str(settings)]
    out = folder / f"{'-'.join(each.strip('-') for each in words)}.out"
    with out.open("w") as log:
        process = subprocess.Popen(command, stdout=log, text=True, cwd=folder)
    try:
        yield process, out
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()  # reports that would take ten minutes more
            process.wait()


def _address(page: tuple[subprocess.Popen[str], Path]) -> str:
    process, out = page

    def said() -> str:
        if process.poll() is not None:
            sys.exit("qframe web did not start")
        return out.read_text().rpartition(" on ")[2].strip().rstrip("/")

    address = _wait(said, "the page's address")
    _wait(lambda: _answers(address), "the page")
    return address


def _answers(address: str) -> bool:
    try:
        with urlopen(f"{address}/healthz", timeout=5) as answer:  # noqa: S310 (our own address)
            return bool(answer.status == 200)  # noqa: PLR2004 (it is there)
    except (URLError, OSError):
        return False


def _wait(condition: Callable[[], object], what: str) -> str:
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        value = condition()
        if value:
            return str(value)
        time.sleep(0.05)
    sys.exit(f"waited {_PATIENCE:g} s for {what}")
