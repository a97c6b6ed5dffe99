"""What a beanstalkd refuses, says wrongly or loses, and what is said of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import greenstalk
import pytest

from qframe.contracts.queue import Sizes
from qframe.contracts.step import (
    APPLIED,
    LOST,
    Bury,
    Delete,
    OfReservation,
    Push,
    Release,
    Renew,
    Step,
)
from qframe.drivers.beanstalkd import checks
from qframe.drivers.beanstalkd.backend import BeanstalkdBackend
from qframe.drivers.beanstalkd.connection import BeanstalkdConnection, Reply
from qframe.drivers.beanstalkd.errors import OutOfStep, PutBuried, ServerDraining, ServerFull
from qframe.exceptions import BackendUnavailable, BackendUnusable, PayloadTooLarge
from tests.drivers.beanstalkd.acts import begin, delete, push, take
from tests.drivers.beanstalkd.conftest import Connect
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

    def __init__(self, answer: bytes, stats: bytes = STATS) -> None:
        self.answer = answer
        self.stats = stats
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
                    sock.sendall(b"OK %d\r\n%b\r\n" % (len(self.stats), self.stats))
                elif line.startswith(b"use"):
                    sock.sendall(b"USING x\r\n")
                elif line.startswith(b"delete"):
                    sock.sendall(b"DELETED\r\n")
                else:
                    sock.sendall(self.answer)


@contextmanager
def impostor(answer: bytes, stats: bytes = STATS) -> Iterator[Impostor]:
    made = Impostor(answer, stats)
    try:
        yield made
    finally:
        made.close()


class TestPush:
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
            backend = connect(server)
            with pytest.raises(kind) as caught:
                push(backend, b"a")
            assert type(caught.value) is kind
            assert isinstance(caught.value.__cause__, cause)
            with pytest.raises(kind):
                push(backend, b"a", b"b")
            assert b"delete 17\r\n" not in server.said, "beanstalkd would crash"

    def test_a_server_that_drains(self, own_server: BeanstalkdServer, connect: Connect) -> None:
        backend = connect(own_server)
        push(backend, b"a")
        own_server.refuse_puts()
        with pytest.raises(ServerDraining, match="draining"):
            push(backend, b"b")
        assert any("draining" in each for each in backend.check().warnings)
        delete(backend, begin(backend))
        assert backend.sizes("default") == Sizes()

    def test_what_cannot_be_pushed_is_refused_before_anything_is(
        self, backend: BeanstalkdBackend
    ) -> None:
        assert backend.longest_message() == 65_535
        with pytest.raises(PayloadTooLarge, match=r"65,536 bytes.*65,535"):
            push(backend, b"a", b"x" * 65_536)
        with pytest.raises(ValueError, match="at most"):
            backend.apply(Step(None, Push("q", b"a"), Push("q", b"b", 2.0**40)))
        push(backend, b"x" * 65_535)
        assert backend.sizes("default") == Sizes(ready=1)
        assert backend.sizes("q") == Sizes()

    def test_many_are_an_exchange(
        self, backend: BeanstalkdBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        exchanges = []
        exchange = BeanstalkdConnection.exchange

        def counted(
            self: BeanstalkdConnection, commands: Sequence[bytes], count: int | None = None
        ) -> list[Reply]:
            exchanges.append(len(commands))
            return exchange(self, commands, count)

        backend.check()
        monkeypatch.setattr(BeanstalkdConnection, "exchange", counted)
        steps = [Step(None, Push("a", b"%d" % n), Push("a", b"-")) for n in range(500)]
        assert backend.apply(*steps) == [APPLIED] * 500
        assert exchanges == [501, 500]
        assert backend.sizes("a") == Sizes(ready=1000)

    def test_an_answer_that_is_lost_says_so_and_is_not_said_again(
        self, server: BeanstalkdServer, connect: Connect
    ) -> None:
        with Proxy(*server.address) as proxy:
            backend = connect(server, port=proxy.address[1])
            push(backend, b"a")
            proxy.switch(Mode.CUT_AFTER_REQUEST, only=b"put", times=1)
            with pytest.raises(BackendUnavailable, match="may have been pushed or not"):
                push(backend, b"b")
            proxy.switch(Mode.CUT_AFTER_REQUEST, only=b"put", times=1)
            with pytest.raises(BackendUnavailable, match="0 of 2 were pushed, others may have"):
                push(backend, b"c", b"d")
            assert backend.sizes("default").ready == 4


class TestConnection:
    def test_a_server_that_is_not_there_is_named(self, connect: Connect, tmp_path: Path) -> None:
        nowhere = connect(BeanstalkdServer(tmp_path / "never started"))
        for act in (lambda: push(nowhere, b"a"), lambda: nowhere.wait(["q"], 0), nowhere.check):
            with pytest.raises(BackendUnavailable, match=r"beanstalkd://127\.0\.0\.1:\d+: .*refus"):
                act()
        nowhere.close()

    @pytest.mark.parametrize("stats", [b"", b"---\nversion: 1\n"])
    def test_what_is_no_beanstalkd_cannot_be_used(self, connect: Connect, stats: bytes) -> None:
        with impostor(b"", stats) as server, pytest.raises(BackendUnusable, match="no beanstalkd"):
            push(connect(server), b"a")

    def test_a_server_without_an_answer(self, server: BeanstalkdServer, connect: Connect) -> None:
        with Proxy(*server.address) as proxy:
            backend = connect(server, port=proxy.address[1], timeout=0.2)
            push(backend, b"a")
            proxy.switch(Mode.BLACKHOLE)
            with pytest.raises(BackendUnavailable, match="does not answer"):
                backend.sizes("default")

    def test_a_restart_in_between_is_not_noticed(
        self, own_server: BeanstalkdServer, connect: Connect
    ) -> None:
        backend = connect(own_server)
        push(backend, b"a")
        assert take(backend).raw_body == b"a"
        own_server.restart()
        talk = backend._connections.talk
        wait_for(talk.is_readable, "the end of the connection to be seen")
        talk._spoke = 0
        push(backend, b"b")
        assert take(backend).raw_body == b"a"
        assert backend.sizes("default").total == 2

    @pytest.mark.parametrize("end", [Delete(), Bury(), Release(60)], ids=repr)
    def test_a_settle_whose_answer_was_lost_is_looked_up(
        self, server: BeanstalkdServer, connect: Connect, end: OfReservation
    ) -> None:
        verb = type(end).__name__.lower().encode()
        with Proxy(*server.address) as proxy:
            backend = connect(server, port=proxy.address[1])
            push(backend, b"a")
            job = begin(backend)
            proxy.switch(Mode.CUT_AFTER_REQUEST, only=verb, times=1)
            with pytest.raises(BackendUnavailable):
                backend.apply(Step(job, end))
            assert job.sure_until == 0
            assert backend.apply(Step(job, end)) == [APPLIED]

    @pytest.mark.parametrize("end", [Delete(), Bury(), Release(60)], ids=repr)
    def test_a_settle_that_did_not_arrive_was_lost(
        self, server: BeanstalkdServer, connect: Connect, end: OfReservation
    ) -> None:
        verb = type(end).__name__.lower().encode()
        with Proxy(*server.address) as proxy:
            backend = connect(server, port=proxy.address[1])
            push(backend, b"a")
            job = begin(backend)
            proxy.switch(Mode.CUT_REQUEST, only=verb, times=1)
            with pytest.raises(BackendUnavailable):
                backend.apply(Step(job, end))
            assert backend.apply(Step(job, end)) == [LOST]
            assert server.counts() == (1, 0, 0, 0)

    @pytest.mark.parametrize("arrives", [True, False])
    def test_a_deletion_said_with_a_reserve_is_looked_up_as_well(
        self, server: BeanstalkdServer, connect: Connect, *, arrives: bool
    ) -> None:
        with Proxy(*server.address) as proxy:
            backend = connect(server, port=proxy.address[1])
            push(backend, b"a")
            job = begin(backend)
            mode = Mode.CUT_AFTER_REQUEST if arrives else Mode.CUT_REQUEST
            proxy.switch(mode, only=b"delete", times=1)
            with pytest.raises(BackendUnavailable):
                backend.reserve(["default"], first=[job.delete()])
            jobs, results = backend.reserve(["default"], first=[job.delete()])
            assert (len(jobs), results) == ((0, [APPLIED]) if arrives else (1, [LOST]))

    def test_a_lost_connection_is_seen_at_the_renewal(
        self, server: BeanstalkdServer, connect: Connect
    ) -> None:
        with Proxy(*server.address) as proxy:
            backend = connect(server, port=proxy.address[1])
            push(backend, b"a")
            job = begin(backend)
            proxy.switch(Mode.CUT)
            wait_for(lambda: server.counts() == (1, 0, 0, 0), "the message to go back")
            assert backend.apply(Step(job, Renew(60))) == [LOST]
            assert backend.apply(Step(job, Delete())) == [LOST]


class TestChecks:
    def test_with_a_log_on_loopback_all_is_well(self, backend: BeanstalkdBackend) -> None:
        health = backend.check()
        assert health.version.startswith("beanstalkd 1.")
        assert health.warnings == ()
        assert backend.queues() == []

    def test_without_a_log(self, server: BeanstalkdServer, connect: Connect) -> None:
        with BeanstalkdServer(server.folder / "unlogged", log=False) as made:
            (warning,) = connect(made).check().warnings
        assert "-b" in warning

    def test_a_log_that_is_written_no_more(
        self, backend: BeanstalkdBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As after an error of the disk: the count of records stands still."""
        stats = checks._stats

        def stuck(connection: BeanstalkdConnection) -> dict[bytes, bytes]:
            return {**stats(connection), b"binlog-records-written": b"7"}

        monkeypatch.setattr(checks, "_stats", stuck)
        (warning,) = backend.check().warnings
        assert "stopped writing its log" in warning

    def test_an_open_address(self, server: BeanstalkdServer, connect: Connect) -> None:
        with BeanstalkdServer(server.folder / "open", listen="0.0.0.0") as made:
            (warning,) = connect(made).check().warnings
        assert "open address" in warning
