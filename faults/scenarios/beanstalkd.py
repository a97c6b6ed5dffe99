"""What only a beanstalkd does: it leases by connection, drains, and loses its log."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from faults import jobs
from faults.scenario import scenario
from faults.site import Producer, Site
from qframe.exceptions import QframeError
from tests.support.ledger import Fault
from tests.support.proxy import Mode

_NOTICED = 1.0
"""Seconds until a worker says that it has lost its job with its connection."""
_PAGE = 4096
_AT_ONCE = 1.0
"""Seconds until another worker has a job whose worker has lost its connection."""


@scenario("F40", "kill -9 of beanstalkd, -b -f0", "beanstalkd")
def kill_beanstalkd(site: Site) -> None:
    """Kill it again and again: what was reserved is ready again, and tries still end a job."""
    server, outages = site.beanstalkd, site.count(8, 2)
    _what_was_reserved_is_ready(site)
    failing = [site.send(jobs.Raises, failures=10**6) for _ in range(10)]
    site.may_fail = set(failing)
    site.begin(3, "--backoff", "1")
    slowest = 0.0
    with Producer(site, 0.02, seconds=(0.01, 0.05)):
        site.resumed(time.monotonic())
        for _ in range(outages):
            site.pause(site.chance.uniform(0.1, 0.6))
            with site.fault("outage"):
                server.kill()
                site.pause(site.chance.uniform(0.1, 1.5))
                server.start()
                up = time.monotonic()
            slowest = max(slowest, site.resumed(up))
    site.finish()
    dead = site.dead()
    site.check(dead.keys() == site.may_fail, f"failed: {sorted(dead)}, not {failing}")
    most = max(site.starts(number) for number in failing)
    # A server that was killed has forgotten the starts there were.
    site.check(most <= 2 * (1 + outages), f"a job of two tries was started {most} times")
    site.check(slowest < site.patience(2.0), f"it took {slowest:.1f} s until jobs ran again")
    site.remark(f"outages {outages}, resumed in {slowest:.2f} s, most starts of 2 tries {most}")


def _what_was_reserved_is_ready(site: Site) -> None:
    server = site.beanstalkd
    numbers = [site.send() for _ in range(20)]
    site.send(delay=2)
    with server.client() as client:
        for _ in range(5):
            client.reserve(0)
        site.check(server.counts() == (15, 1, 5, 0), f"before: {server.counts()}")
        server.restart(kill=True)
    site.queue.close()  # else the next push finds that its connection has ended, and raises
    site.check(
        server.counts()[0] == len(numbers), f"after a kill there are {server.counts()} in its log"
    )


@scenario("F41", "jobs longer than their lease, renewed and not", "beanstalkd")
def longer_than_its_lease(site: Site) -> None:
    """Run jobs of five leases: once where they are renewed, and again and again where not."""
    site.begin(3)
    kept = [site.send(seconds=5 * site.lease) for _ in range(site.count(6, 2))]
    site.check(site.wait_for(lambda: site.left() == 0), "jobs are left")
    runs = [site.starts(number) for number in kept]
    site.check(runs == [1] * len(kept), f"renewed jobs were started {runs} times")
    site.end_workers()
    began = time.monotonic()
    unrenewed = [site.worker(UNRENEWED="yes") for _ in range(2)]
    again = 1
    for _ in range(20):  # beanstalkd overlooks the end of some leases
        lost = site.send(seconds=2.5 * site.lease)
        site.wait_for(lambda lost=lost: site.starts(lost) > 1 or site.left() == 0, 30)  # type: ignore[misc]
        again = max(again, site.starts(lost))
        if again > 1:
            break
    for worker in unrenewed:
        site.check(worker.stop() == 0, f"an unrenewed worker ended so: {worker.err}")
        site.faults.append(Fault("unrenewed", began, time.monotonic(), worker.pid))
    site.check(again > 1, f"a job that nobody renews was started {again} times")
    site.limit = None
    site.remark(f"renewed {len(kept)}, unrenewed 1, started {again} times")
    site.begin(2)
    site.finish()


@scenario("F42", "connections cut while jobs are reserved", "beanstalkd", through_proxy=True)
def connections_cut(site: Site) -> None:
    """Cut workers off: others get their jobs at once, and the first are told that they lost."""
    proxy, cuts = site.bad_network, site.count(12, 2)
    site.begin(3)
    noticed: list[float] = []
    for _ in range(cuts):
        running = site.send(seconds=1.2 * site.lease + _NOTICED)
        site.wait_for(lambda running=running: site.starts(running) == 1)  # type: ignore[misc]
        for _ in range(10):
            site.send(seconds=site.chance.uniform(0.05, 0.2))
        site.pause(site.chance.uniform(0, 0.3))
        with site.fault("cut"):
            proxy.switch(Mode.CUT)
            proxy.switch(Mode.PASS)
        cut = time.monotonic()
        told = site.wait_for(lambda running=running: bool(_told(site, running)), 10)  # type: ignore[misc]
        site.check(told, f"nobody was told that job {running} was lost")
        noticed += [moment - cut for moment in _told(site, running)[:1]]
        site.wait_for(lambda: site.left() == 0)
    site.limit = site.patience(_AT_ONCE)
    worst = max(noticed, default=0.0)
    site.check(worst < site.patience(_NOTICED), f"a loss was noticed after {worst:.1f} s")
    site.remark(f"cuts {cuts}, noticed in {worst:.2f} s")
    site.finish()


def _told(site: Site, number: int) -> list[float]:
    """Give when workers were told that they had lost a job."""
    return [float(w[-1]) for w in site.notes("A") if w[1:3] == [str(number), "lost"]]


@scenario("F43", "a beanstalkd that is drained (SIGUSR1)", "beanstalkd")
def drained(site: Site) -> None:
    """Let it refuse new jobs: pushes raise, and everything there is run."""
    numbers = [site.send(seconds=0.01) for _ in range(site.count(300, 60))]
    late = [site.send(seconds=0.01, delay=1) for _ in range(10)]
    retried = [site.send(jobs.Raises, failures=1) for _ in range(10)]
    site.beanstalkd.refuse_puts()
    errors = site.refused(20)
    site.check(all("draining" in error for error in errors), f"a push raised {errors[:1]}")
    site.check(len(errors) == 20, f"only {len(errors)} of 20 pushes were refused")
    site.begin(2)
    site.check(site.wait_for(lambda: site.left() == 0), f"{site.left()} jobs stayed")
    done = sum(site.ends(number) > 0 for number in (*numbers, *late, *retried))
    site.remark(f"pushes refused {len(errors)}, done {done}")
    site.finish()


@scenario("F44", "an error in writing beanstalkd's log", "beanstalkd")
def log_broken(site: Site) -> None:
    """Fail one write of its log: the push raises, and `check` says that the log is off."""
    if shutil.which("strace") is None:
        site.remark("not tried: there is no strace")
        return
    server = site.beanstalkd
    server.stop()
    file = server.log_folder / "binlog.1"
    server.empty_folder()
    server.log_folder.mkdir()
    server.log_file = 16 * _PAGE  # it makes room for a file by writing its pages
    trace = str(server.folder / "strace.txt")
    server.under = [
        *("strace", "-D", "-f", "-o", trace, "-P", str(file)),
        *("-e", "trace=write,writev", "-e", "inject=write,writev:error=EIO:when=60"),
    ]
    server.start()
    before = site.qframe("check")
    errors: list[str] = []
    while not errors and len(site.sent()) < 20:
        errors += site.refused(1)
    site.check(
        any("for sure" in error for error in errors),
        f"no push was refused as buried: {errors}",
    )
    after = site.qframe("check")
    said = set(after.out.splitlines()) - set(before.out.splitlines())
    site.check(
        any("log" in line for line in said), f"check said nothing new of the log: {after.out}"
    )
    server.under = []
    site.begin(2)
    site.wait_for(lambda: site.left() == 0)
    # The one that was refused stays buried in its memory until it ends.
    site.remark(f"pushed {len(site.sent()) - 1}, refused {len(errors)}")
    site.finish()


@scenario(
    "F45",
    "a beanstalkd with no room, and one that answers rubbish",
    "beanstalkd",
    through_proxy=True,
)
def refusals(site: Site) -> None:
    """Let its log find no room, make a job too big, and put something else in its place."""
    site.use_proxy_here_too()
    good = [site.send(seconds=0.01) for _ in range(20)]
    _too_big(site)
    full = _no_room(site)
    rubbish = _rubbish(site)
    good += [site.send(seconds=0.01) for _ in range(20)]
    site.begin(2)
    site.check(site.wait_for(lambda: site.left() == 0), f"{site.left()} jobs stayed")
    site.check(not site.not_done(set(good)), f"{len(site.not_done(set(good)))} were not done")
    site.remark(f"full {full}, rubbish {rubbish}, good {len(good)}")
    site.finish()


def _too_big(site: Site) -> None:
    server = site.beanstalkd
    server.max_job = 65_535
    server.restart()
    site.queue.close()
    try:
        site.queue.push_raw(b"x" * 70_000)
    except QframeError as error:
        told = "70,000" in str(error) and "65,535" in str(error)
        site.check(told, f"a job that is too big is refused so: {error}")
    else:
        site.violate("70,000 bytes were taken")


def _no_room(site: Site) -> int:
    """Let the next file of its log not be there to be had: as a full disk does."""
    server = site.beanstalkd
    server.stop()
    server.log_file = 16 * _PAGE
    server.start()
    site.queue.close()
    taken = max(int(file.name.rpartition(".")[2]) for file in server.log_folder.glob("binlog.*"))
    in_the_way = [server.log_folder / f"binlog.{taken + number}" for number in range(1, 9)]
    for each in in_the_way:
        each.mkdir()
    errors: list[str] = []
    for _ in range(200):
        try:
            site.send(jobs.Carries, value="x" * 5000)
        except QframeError as error:
            errors.append(str(error))
            if len(errors) == 3:
                break
    site.check(
        len(errors) == 3 and all("no memory left" in error for error in errors),
        f"without room for its log, pushes raised {errors[:3]}",
    )
    for each in in_the_way:
        with suppress(OSError):
            each.rmdir()
    return len(errors)


def _rubbish(site: Site) -> int:
    """Let something else answer in its place: the push raises, the next one is asked anew."""
    proxy, refused = site.bad_network, 0
    for answer in (
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"INSERTED\r\n",
        b"\0\1\2",
        b"",
        b"OK 99\r\n",
    ):
        with _server_of(answer) as address:
            proxy.retarget(*address)
            proxy.switch(Mode.CUT)
            proxy.switch(Mode.PASS)
            refused += len(site.refused(1))
        proxy.retarget(*site.beanstalkd.address)
        proxy.switch(Mode.CUT)
        proxy.switch(Mode.PASS)
    site.check(refused == 5, f"only {refused} of 5 wrong answers were refused")
    return refused


@contextmanager
def _server_of(answer: bytes) -> Iterator[tuple[str, int]]:
    """Give the address of what says one thing to everybody, whatever is asked, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection, suppress(OSError):
                        connection.settimeout(2)
                        connection.recv(65536)
                        connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
