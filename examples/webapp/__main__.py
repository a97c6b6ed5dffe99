"""Mail server, web application and worker in one terminal: `python -m examples.webapp`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from email import message_from_bytes, policy
from pathlib import Path

import httpx2
import uvicorn
from aiosmtpd.smtp import SMTP, Envelope, Session

from examples.webapp.app import app
from qframe import QueueManager, config, manager

ROOT = Path(__file__).parents[2]
BOOKING = {"guest": "Ada", "email": "ada@example.org", "seats": "2", "evening": "2030-12-10"}
PATIENCE = 30


def main() -> int:
    """Run everything until Ctrl-C; with --once, until one mail has arrived."""
    parser = argparse.ArgumentParser(prog="python -m examples.webapp", description=__doc__)
    parser.add_argument("--once", action="store_true", help="book a table, await the mail, end")
    once = parser.parse_args().once
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends it as Ctrl-C does
    try:
        with tempfile.TemporaryDirectory(prefix="webapp-") as folder:
            return asyncio.run(run(Path(folder), once=once))
    except KeyboardInterrupt:
        print("stopped")
        return 0


async def run(folder: Path, *, once: bool) -> int:
    """Start the three, then book a table or wait for others to do so."""
    settings = write_configuration(folder)
    manager.use(QueueManager(config.load(settings)))
    mailbox = Mailbox()
    mail_server = await asyncio.get_running_loop().create_server(
        lambda: SMTP(mailbox, hostname="localhost", enable_SMTPUTF8=True), "127.0.0.1", 0
    )
    # Said to be TCP, so that asyncio turns off its delay of small packets (TCP_NODELAY).
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    url = "http://{}:{}".format(*listener.getsockname())
    web = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    async with mail_server, running_worker(settings, *mail_server.sockets[0].getsockname()):
        if not once:
            print(f"book a table at {url} (Ctrl-C ends everything)", flush=True)
            await web.serve([listener])
            return 0
        serving = asyncio.create_task(web.serve([listener]))
        try:
            return await book_once(url, mailbox)
        finally:
            web.should_exit = True
            await serving


def write_configuration(folder: Path) -> Path:
    """Write the folder's own qframe.toml; its strings are TOML because JSON's are."""
    file = folder / "qframe.toml"
    url = f"sqlite:///{folder.resolve() / 'queue.sqlite3'}"
    file.write_text(
        f"root = {json.dumps(str(ROOT))}\n"
        'default = "database"\n'
        'jobs = ["examples.webapp.jobs"]\n'
        "\n"
        "[connections.database]\n"
        f"url = {json.dumps(url)}\n",
        encoding="utf-8",
    )
    return file


class Mailbox:
    """What the mail server does with a mail: print it, and note when it came."""

    def __init__(self) -> None:
        self.arrivals: asyncio.Queue[float] = asyncio.Queue()

    async def handle_DATA(  # noqa: N802 (aiosmtpd calls it so)
        self, _server: SMTP, _session: Session, envelope: Envelope
    ) -> str:
        """Take one mail."""
        mail = message_from_bytes(envelope.original_content or b"", policy=policy.default)
        self.arrivals.put_nowait(time.perf_counter())
        print(f"mail   | To: {mail['To']}\nmail   | Subject: {mail['Subject']}")
        for line in mail.get_content().splitlines():
            print(f"mail   | {line}", flush=True)
        return "250 taken"


@asynccontextmanager
async def running_worker(settings: Path, smtp_host: str, smtp_port: int) -> AsyncIterator[None]:
    """Start a worker process that sends through the given server; end it whatever happens."""
    qframe = Path(sys.executable).with_name("qframe")
    worker = await asyncio.create_subprocess_exec(
        *(str(qframe), "work", "--queue", "mail", "--config", str(settings)),
        env={**os.environ, "SMTP_HOST": smtp_host, "SMTP_PORT": str(smtp_port)},
        stdout=asyncio.subprocess.PIPE,
    )
    lines = worker.stdout
    assert lines is not None  # noqa: S101 (it was asked for)
    try:
        header = await lines.readline()
        if not header:
            sys.exit("the worker did not start")
        print_worker(header)
        showing = asyncio.create_task(show_worker(lines))
        yield
    finally:
        with suppress(ProcessLookupError):
            worker.terminate()  # finishes its job, then stops
        await worker.wait()
    await showing


async def show_worker(lines: asyncio.StreamReader) -> None:
    """Print what the worker prints until it ends."""
    async for line in lines:
        print_worker(line)


def print_worker(line: bytes) -> None:
    """Print one line of the worker's."""
    print(f"worker | {line.decode().strip()}", flush=True)


async def book_once(url: str, mailbox: Mailbox) -> int:
    """Book a table as a browser would, wait for the mail, and tell how long each took."""
    async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
        await client.get("/")  # wait for the server, and leave connecting out of the measurement
        began = time.perf_counter()
        answer = await client.post("/tables", data=BOOKING)
        answered = time.perf_counter()
    print(f"web    | {answer.status_code} {answer.text.strip()}", flush=True)
    try:
        arrived = await asyncio.wait_for(mailbox.arrivals.get(), PATIENCE)
    except TimeoutError:
        print(f"no mail arrived within {PATIENCE} s")
        return 1
    print(f"the request took {(answered - began) * 1000:.0f} ms")
    print(f"the mail arrived after {(arrived - began) * 1000:.0f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
