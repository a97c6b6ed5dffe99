"""`python -m faults.night`: ten things break in a shop, and the commands alone name each cause.

The shop has three queues and real workers on this machine. Each thing is broken, and then asked
about with the words of the command line, as somebody at night would; the answer must name the
cause within ten seconds. Each is mended before the next one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from faults import shop_at_night
from qframe import QueueManager, config
from qframe.worker.process_tree import PR_SET_PDEATHSIG, prctl
from tests.support import past

WITHIN = 10.0
"""Seconds in which the cause must be named, from the first question."""
_READY = 60.0
"""Seconds for what is only prepared."""
_PAUSE = 0.2


class Said(NamedTuple):
    """The output of a command, and its exit code."""

    code: int
    text: str


@dataclass
class Answer:
    """What came of one trouble."""

    name: str
    seconds: float = 0.0
    line: str = ""
    """The line that names the cause, or what was said instead."""
    is_named: bool = False
    missing: str = ""
    """The command that this version lacks."""


@dataclass
class Night:
    """A shop in a folder: its workers, and the commands."""

    root: Path
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.root / "qframe.toml").write_text(shop_at_night.SETTINGS)
        self.deploy()

    # -- the shop ---------------------------------------------------------------------------------

    def deploy(self, more: str = "", **changed: str) -> None:
        """Write the program of the shop: with classes more, or with parts of it changed."""
        text = shop_at_night.PROGRAM
        for name, by in changed.items():
            before = f"# {name}\n"
            assert before in text  # noqa: S101 (the program has a place of this name)
            text = text.replace(before, by)
        (self.root / "shop.py").write_text(text + more)

    def qframe(self, *words: str) -> Said:
        """Run a command to its end."""
        done = subprocess.run(  # noqa: S603 (ours)
            [sys.executable, "-m", "qframe", *words],
            cwd=self.root,
            env=self._environment(),
            capture_output=True,
            timeout=_READY,
            check=False,
        )
        return Said(done.returncode, (done.stdout + done.stderr).decode())

    def _environment(self) -> dict[str, str]:
        here = str(Path(__file__).resolve().parents[1])
        return {**os.environ, "PYTHONPATH": here, "COLUMNS": "300"}

    def dispatch(self, job: str, data: str = "{}", *words: str) -> str:
        """Dispatch a job; gives its id."""
        said = self.qframe("dispatch", f"shop.{job}", data, *words)
        if said.code:
            raise RuntimeError(said.text)
        return said.text.partition("\n")[0].strip()

    def begin(self, name: str, *words: str) -> None:
        """Start a worker, and wait until it is listed."""
        log = (self.root / f"{name}.log").open("ab")
        with log:
            self.workers[name] = subprocess.Popen(  # noqa: S603 (ours)
                [sys.executable, "-m", "qframe", "work", "--name", name, "--memory", "0", *words],
                cwd=self.root,
                env=self._environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 (no thread is running)
            )
        self.wait(lambda: name in self.qframe("workers", "--json").text, f"the worker {name}")

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """End a worker by a signal, and wait for its end."""
        worker = self.workers.pop(name)
        with suppress(ProcessLookupError):
            worker.send_signal(number)
        try:
            worker.wait(_READY)
        except subprocess.TimeoutExpired:
            worker.kill()

    def wait(self, there: Callable[[], object], what: str) -> None:
        """Wait for what is prepared."""
        ends = time.monotonic() + _READY
        while not there():
            if time.monotonic() > ends:
                raise TimeoutError(f"{what} was waited for in vain")
            time.sleep(_PAUSE)

    @contextmanager
    def blocked(self, name: str) -> Iterator[None]:
        """Have jobs that look for this file wait as long."""
        path = self.root / f"{name}.blocks"
        path.touch()
        try:
            yield
        finally:
            path.unlink()

    def runs(self, uuid: str) -> bool:
        """Whether a job runs."""
        return uuid in self.qframe("workers", "--json").text

    def is_idle(self, queue: str) -> bool:
        """Whether no job of a queue is ready or runs."""
        sizes = json.loads(self.qframe("size", "--queue", queue, "--json").text)
        return not any(each["ready"] or each["reserved"] for each in sizes)

    def queues(self) -> QueueManager:
        """Give the shop's connections, for what no command pushes."""
        return QueueManager(config.load(self.root / "qframe.toml"))

    # -- asking -----------------------------------------------------------------------------------

    def ask(self, answer: Answer, words: str, names: str) -> None:
        """Ask until the answer names the cause, or the time is over."""
        if answer.missing or (answer.line and not answer.is_named):
            return  # an earlier question had no answer
        began, said, answer.is_named = time.monotonic(), Said(0, ""), False
        while time.monotonic() - began < WITHIN:
            said = self.qframe(*shlex.split(words))
            found = re.search(names, said.text)
            if found:
                answer.line = answer.line or _line_of(said.text, found.start())
                answer.is_named = True
                break
            if "No such command" in said.text:
                answer.missing = words.split(maxsplit=1)[0]
                break
            time.sleep(_PAUSE)
        answer.seconds += time.monotonic() - began
        if not answer.is_named:
            answer.line = " / ".join(said.text.splitlines())[:1500]

    def end(self) -> None:
        """End all workers."""
        for name in [*self.workers]:
            self.kill(name)


def _end_with_parent() -> None:
    """Have a worker die with the process that plays the night, however that ends."""
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _line_of(text: str, at: int) -> str:
    return text[text.rfind("\n", 0, at) + 1 :].partition("\n")[0].strip()


class Trouble(NamedTuple):
    """Something that breaks; `happens` breaks it, asks, and mends it."""

    name: str
    happens: Callable[[Night, Answer], None]


def _typo(night: Night, answer: Answer) -> None:
    night.dispatch("Mail", '{"to": "ann"}', "--queue", "mial")
    night.ask(answer, "why mial", r"no worker takes mial .*did you mean mail")
    night.qframe("clear", "database", "--queue", "mial", "--yes")


def _full_limit(night: Night, answer: Answer) -> None:
    with night.blocked("report"):
        first = night.dispatch("Report", '{"number": 1}')
        night.wait(lambda: night.runs(first), "the report")
        second = night.dispatch("Report", '{"number": 2}')
        night.ask(answer, f"why {second}", rf"1 of 1.*{first}")


def _dead_worker(night: Night, answer: Answer) -> None:
    with night.blocked("report"):
        night.begin("dies", "--queue", "orders")
        uuid = night.dispatch("Order", '{"number": 3}')
        night.wait(lambda: night.runs(uuid), "the order")
        night.kill("dies")
        night.ask(answer, f"why {uuid}", r"lease .*(gone|died|dead)|(gone|died|dead).* lease")
    night.qframe("clear", "database", "--queue", "orders", "--yes")


def _old_worker(night: Night, answer: Answer) -> None:
    night.deploy(more=shop_at_night.GIFT)
    uuid = night.dispatch("Gift", '{"to": "ann"}')
    night.ask(answer, f"why {uuid}", r"(?s)no (live )?worker.*(knows|can run).*shop\.Gift|lack")
    night.qframe("cancel", uuid)
    night.deploy()


def _poison(night: Night, answer: Answer) -> None:
    queues = night.queues()
    raw = '{"uuid": "poison", "job": "shop.Mail", "maxTries": 1, "data": {"to": ["not a name"]}}'
    queues.connection().push_raw(raw, "mail")
    queues.close()
    night.ask(answer, "why poison", r"Mail: to: Input should be a valid string")
    night.qframe("cancel", "poison")


def _out_of_memory(night: Night, answer: Answer) -> None:
    uuid = night.dispatch("Import", "{}")
    night.wait(lambda: uuid in night.qframe("failed", "--json").text, "the failed import")
    night.ask(answer, f"failed {uuid}", r"killed by SIGKILL.*MB.*shop\.py:\d+")


def _bad_deploy(night: Night, answer: Answer) -> None:
    uuid = night.dispatch("Ship", '{"order": 7}', "--delay", "86400")
    night.deploy(carrier="    carrier: str\n")
    night.ask(answer, "check --payloads", r"shop\.Ship lack.*carrier")
    night.deploy()
    night.qframe("cancel", uuid)


def _flood(night: Night, answer: Answer) -> None:
    with night.blocked("mail"):
        queues = night.queues()
        # Two weeks in which a mail came each minute and took two seconds.
        past.remember(queues.connection(), time.time(), lambda _: 1.0, run=2.0)
        texts = (f'{{"uuid": "f{n}", "job": "shop.News", "data": {{}}}}' for n in range(5000))
        for text in texts:
            queues.connection().push_raw(text, "mail")
        queues.close()
        uuid = night.dispatch("Mail", '{"to": "ann"}')
        night.ask(answer, f"why {uuid}", r"[45],\d{3} jobs are before it in mail")
        night.ask(answer, "forecast mail", r"5,\d{3} jobs wait, .* finishes .*: 1h behind at")
    night.qframe("cancel", "--where", "class:shop.News", "--yes")


def _mistaken_clear(night: Night, answer: Answer) -> None:
    with night.blocked("mail"):
        for _ in range(3):
            night.dispatch("Mail", '{"to": "bob"}')
        night.qframe("clear", "database", "--queue", "mail", "--yes")
        night.ask(answer, "undo --dry-run", r"bring back . jobs of `clear` database:mail by ")
        if answer.is_named:
            night.ask(answer, "undo --yes", r"brought back . jobs")
    night.wait(lambda: night.is_idle("mail"), "the mails that came back")


def _stuck_tenant(night: Night, answer: Answer) -> None:
    with night.blocked("shop-7"):
        stuck = [night.dispatch("Charge", '{"shop": 7}') for _ in range(2)]
        night.wait(lambda: any(night.runs(each) for each in stuck), "the charge of shop 7")
        other = night.dispatch("Charge", '{"shop": 8}')
        night.ask(answer, f"why {other}", r"longest job, shop\.Charge")
        night.ask(answer, "workers --json", r'"shop:7"')
        night.qframe("hold", "args.shop:7", "--for", "2h")
        for uuid in stuck:
            night.qframe("cancel", uuid, "--running")
        night.wait(lambda: night.is_idle("charges"), "the charge of shop 8")
        night.ask(answer, "usage --by tag --last 2h", r"shop:7")


TROUBLES = (
    Trouble("a typo in a queue", _typo),
    Trouble("a full limit", _full_limit),
    Trouble("a dead worker", _dead_worker),
    Trouble("an old worker", _old_worker),
    Trouble("a poison message", _poison),
    Trouble("out of memory", _out_of_memory),
    Trouble("a bad deploy", _bad_deploy),
    Trouble("a flood", _flood),
    Trouble("a mistaken clear", _mistaken_clear),
    Trouble("a stuck tenant", _stuck_tenant),
)


def through(night: Night, troubles: Sequence[Trouble] = TROUBLES) -> Iterator[Answer]:
    """Go through a night; the workers are there from its beginning."""
    night.begin("mail", "--queue", "mail")
    night.begin("reports", "--queue", "reports", "--concurrency", "2")
    night.begin("imports", "--queue", "imports,charges", "--isolate")
    for each in troubles:
        answer = Answer(each.name)
        try:
            each.happens(night, answer)
        except (RuntimeError, TimeoutError, subprocess.TimeoutExpired) as error:
            answer.line = f"{type(error).__name__}: {error}"
        yield answer


def main() -> int:
    """Go through the night; exit 1 if a cause was not named."""
    parser = argparse.ArgumentParser(prog="python -m faults.night", description=__doc__)
    parser.add_argument("troubles", nargs="*", metavar="NUMBER", type=int, help="1 to 10")
    chosen = [TROUBLES[number - 1] for number in parser.parse_args().troubles]
    unnamed = 0
    with tempfile.TemporaryDirectory(prefix="qframe-night-") as folder:
        night = Night(Path(folder))
        try:
            for answer in through(night, chosen or TROUBLES):
                unnamed += not (answer.is_named or answer.missing)
                print(_told(answer), flush=True)
        finally:
            night.end()
    return int(bool(unnamed))


def _told(answer: Answer) -> str:
    if answer.missing:
        return f"--     {answer.name}: this version has no qframe {answer.missing}"
    mark = "ok    " if answer.is_named else "UNSAID"
    return f"{mark} {answer.name}, {answer.seconds:.1f} s: {answer.line}"


if __name__ == "__main__":
    sys.exit(main())
