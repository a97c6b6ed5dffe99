"""What a beanstalkd refuses, says wrongly or loses, and what is said of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import greenstalk
import pytest

from qframe.contracts import Sizes
from qframe.drivers.beanstalkd import checks
from qframe.drivers.beanstalkd.job import BeanstalkdJob
from qframe.drivers.beanstalkd.link import Link
from qframe.drivers.beanstalkd.queue import BeanstalkdQueue
from qframe.drivers.beanstalkd.trouble import OutOfStep, PutBuried, ServerDraining, ServerFull
from qframe.exceptions import BackendUnavailable, LeaseLost, PayloadTooLarge
from tests.conformance.jobs import Plain
from tests.drivers.beanstalkd.conftest import Connect
from tests.drivers.beanstalkd.support import begin, body, take
from tests.support.beanstalkd_server import BeanstalkdServer
from tests.support.process import wait_for
from tests.support.proxy import Mode, Proxy

STATS = b"""---
version: "1.12"
max-job-size: 65535
uptime: 5
binlog-current-index: 0
binlog-records-written: 0
draining: false
"""


class Impostor:
    """A server that answers everything but `stats` and `use` with one line."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.said: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.settings = {"driver": "beanstalkd", "port": self._listener.getsockname()[1]}
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, sock.makefile("rb") as lines:
            while line := lines.readline():
                self.said.append(line)
                if line.startswith(b"put"):
                    lines.read(int(line.split()[4]) + 2)
                if line.startswith(b"stats\r"):
                    sock.sendall(b"OK %d\r\n%b\r\n" % (len(STATS), STATS))
                elif line.startswith(b"use"):
                    sock.sendall(b"USING x\r\n")
                elif line.startswith(b"delete"):
                    sock.sendall(b"DELETED\r\n")
                else:
                    sock.sendall(self.answer)


@contextmanager
def impostor(answer: bytes) -> Iterator[Impostor]:
    made = Impostor(answer)
    try:
        yield made
    finally:
        made.close()


class TestPut:
    @pytest.mark.parametrize(
        ("answer", "kind", "cause"),
        [
            (b"OUT_OF_MEMORY\r\n", ServerFull, greenstalk.OutOfMemoryError),
            (b"DRAINING\r\n", ServerDraining, greenstalk.DrainingError),
            (b"BURIED 17\r\n", PutBuried, greenstalk.BuriedError),
            (b"EXPECTED_CRLF\r\n", OutOfStep, greenstalk.ExpectedCrlfError),
            (b"JOB_TOO_BIG\r\n", PayloadTooLarge, greenstalk.JobTooBigError),
            (b"TOUCHED\r\n", OutOfStep, type(None)),
            (b"INTERNAL_ERROR\r\n", OutOfStep, type(None)),
            (b"HTTP/1.1 400 Bad Request\r\n", OutOfStep, type(None)),
            (b"x" * 5000, OutOfStep, type(None)),
        ],
    )
    def test_every_refusal_has_its_type(
        self, connect: Connect, answer: bytes, kind: type[Exception], cause: type
    ) -> None:
        with impostor(answer) as server:
            queue = connect(server)
            with pytest.raises(kind) as caught:
                queue.push(Plain())
            assert type(caught.value) is kind
            assert isinstance(caught.value.__cause__, cause)
            with pytest.raises(kind):
                queue.bulk([Plain(), Plain()])
            assert b"delete 17\r\n" not in server.said, "beanstalkd would crash"

    def test_a_server_that_drains(self, own_server: BeanstalkdServer, connect: Connect) -> None:
        queue = connect(own_server)
        queue.push_raw(body("a"))
        own_server.refuse_puts()
        with pytest.raises(ServerDraining, match="draining"):
            queue.push(Plain())
        assert any("draining" in each for each in queue.warnings())
        begin(queue).delete()
        assert queue.size() == 0

    def test_too_much_for_the_server_is_refused_before_it_is_sent(
        self, server: BeanstalkdServer, queue: BeanstalkdQueue
    ) -> None:
        with pytest.raises(PayloadTooLarge, match=r"65,536 bytes.*65,535"):
            queue.push_raw(b"x" * 65_536)
        queue.push_raw(b"x" * 65_535)
        assert queue.sizes() == Sizes(ready=1)

    def test_bulk_is_one_exchange_for_many(
        self, queue: BeanstalkdQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        exchanges = []
        exchange = Link.exchange

        def counted(self: Link, commands: bytes, count: int) -> object:
            exchanges.append(count)
            return exchange(self, commands, count)

        queue.ping()
        monkeypatch.setattr(Link, "exchange", counted)
        queue.bulk([Plain(number=number) for number in range(1000)])
        assert exchanges == [500, 500]
        assert queue.size() == 1000


class TestConnection:
    def test_a_server_that_is_not_there_is_named(self, connect: Connect, tmp_path: Path) -> None:
        nowhere = BeanstalkdServer(tmp_path / "never started")
        with pytest.raises(BackendUnavailable, match=r"beanstalkd://127\.0\.0\.1:\d+: .*refus"):
            connect(nowhere).push(Plain())

    def test_a_restart_in_between_is_not_noticed(
        self, own_server: BeanstalkdServer, connect: Connect
    ) -> None:
        queue = connect(own_server)
        queue.push_raw(body("a"))
        assert len(queue.reserve(["default"])) == 1
        own_server.restart()
        wait_for(lambda: queue.links.talk().is_broken(), "the end of the connection to be seen")
        queue.links.talk()._spoke = 0
        queue.push_raw(body("b"))
        assert take(queue).uuid == "a"
        assert queue.size() == 2

    def test_a_lost_connection_is_seen_while_the_job_runs(
        self, server: BeanstalkdServer, connect: Connect
    ) -> None:
        with Proxy(*server.address) as proxy:
            queue = connect(server, port=proxy.address[1])
            other = connect(server)
            queue.push_raw(body("a"))
            job = begin(queue)
            job.confirm()
            proxy.switch(Mode.CUT)
            wait_for(lambda: len(other.reserve(["default"])) == 1, "another to get it")
            wait_for(job.link.is_broken, "the end of the connection to be seen")
            with pytest.raises(LeaseLost):
                job.confirm()
            assert job.is_lost
            with pytest.raises(LeaseLost):
                job.delete()

    def test_a_settle_whose_answer_was_lost_is_looked_up(
        self, server: BeanstalkdServer, connect: Connect
    ) -> None:
        settles: dict[bytes, Callable[[BeanstalkdJob], None]] = {
            b"delete": lambda job: job.delete(),
            b"bury": lambda job: job.bury(),
            b"release": lambda job: job.release(60),
        }
        for verb, settle in settles.items():
            with Proxy(*server.address) as proxy:
                queue = connect(server, port=proxy.address[1])
                queue.push_raw(body("a"))
                job = begin(queue)
                proxy.switch(Mode.CUT_AFTER_REQUEST, only=verb, times=1)
                with pytest.raises(BackendUnavailable):
                    settle(job)
                settle(job)
                assert job.is_settled
                assert not job.is_lost

    def test_a_settle_that_did_not_arrive_was_lost(
        self, server: BeanstalkdServer, connect: Connect
    ) -> None:
        with Proxy(*server.address) as proxy:
            queue = connect(server, port=proxy.address[1])
            queue.push_raw(body("a"))
            job = begin(queue)
            proxy.switch(Mode.CUT_REQUEST, only=b"delete", times=1)
            with pytest.raises(BackendUnavailable):
                job.delete()
            with pytest.raises(LeaseLost):
                job.delete()
            assert server.counts() == (1, 0, 0, 0)

    def test_the_last_job_whose_deletion_is_not_answered(
        self, server: BeanstalkdServer, connect: Connect
    ) -> None:
        with Proxy(*server.address) as proxy:
            queue = connect(server, port=proxy.address[1])
            queue.push_raw(body("a"))
            job = begin(queue)
            proxy.switch(Mode.CUT_AFTER_REQUEST, only=b"delete", times=1)
            with pytest.raises(BackendUnavailable):
                queue.reserve(["default"], finished=job)
            assert queue.reserve(["default"], finished=job) == []
            assert job.is_deleted
            assert queue.refused() == []


class TestChecks:
    def test_with_a_log_on_loopback_all_is_well(self, queue: BeanstalkdQueue) -> None:
        assert queue.warnings() == []
        assert queue.queues() == []

    def test_without_a_log(self, server: BeanstalkdServer, connect: Connect) -> None:
        made = BeanstalkdServer(server.folder / "unlogged", log=False)
        with made:
            (warning,) = connect(made).warnings()
        assert "-b" in warning

    def test_a_log_that_is_written_no_more(
        self, queue: BeanstalkdQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As after an error of the disk: the count of records stands still."""
        stats = checks._stats

        def stuck(link: Link) -> dict[bytes, bytes]:
            return {**stats(link), b"binlog-records-written": b"7"}

        monkeypatch.setattr(checks, "_stats", stuck)
        (warning,) = queue.warnings()
        assert "stopped writing its log" in warning

    def test_an_open_address(self, server: BeanstalkdServer, connect: Connect) -> None:
        with BeanstalkdServer(server.folder / "open", listen="0.0.0.0") as made:
            (warning,) = connect(made).warnings()
        assert "open address" in warning
