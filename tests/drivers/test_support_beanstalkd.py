"""The beanstalkd that other tests stand on does what it is asked for."""

from __future__ import annotations

import time
from pathlib import Path

import greenstalk
import pytest

from tests.support.beanstalkd_server import BeanstalkdServer
from tests.support.process import wait_for


def test_what_was_put_is_there_after_a_kill_and_what_was_reserved_is_ready(
    own_beanstalkd: BeanstalkdServer,
) -> None:
    server = own_beanstalkd
    first, second = server.put(b"a"), server.put(b"b")
    pid, port = server.pid, server.port
    with server.client() as client:
        assert client.reserve(0).id == first
        assert server.counts() == (1, 0, 1, 0)
        server.kill()
        assert not server.alive()
        assert not server.answers()
        server.start()
    assert (server.port, server.counts()) == (port, (2, 0, 0, 0))
    assert server.pid != pid
    assert server.job(second)["state"] == "ready"
    server.restart()
    assert sorted(server.bodies()) == [b"a", b"b"]
    server.stop()
    server.empty_folder()
    server.start()
    assert server.job(first) == {}
    assert server.tube("absent") == {}


def test_without_its_log_it_forgets_everything(tmp_path: Path) -> None:
    with BeanstalkdServer(tmp_path, log=False) as server:
        server.put(b"a")
        assert server.stats()["binlog-current-index"] == 0
        server.restart()
        assert server.counts() == (0, 0, 0, 0)


def test_a_paused_server_answers_once_it_goes_on(own_beanstalkd: BeanstalkdServer) -> None:
    own_beanstalkd.pause()
    with own_beanstalkd.client(timeout=0.1) as client, pytest.raises(TimeoutError):
        client.using()
    own_beanstalkd.resume()
    assert own_beanstalkd.answers()
    own_beanstalkd.pause()
    own_beanstalkd.stop()
    assert not own_beanstalkd.alive()


def test_it_is_emptied_of_jobs_of_every_kind_and_of_pauses(
    own_beanstalkd: BeanstalkdServer,
) -> None:
    server = own_beanstalkd
    server.put(b"a", "one")
    server.put(b"b", "two", delay=100)
    with server.client("three") as client:
        client.put(b"c")
        client.bury(client.reserve(0))
        client.pause_tube("three", 100)
        server.empty()
        assert [server.counts(tube) for tube in ("one", "two", "three")] == 3 * [(0, 0, 0, 0)]
        client.put(b"d")
        assert wait_for(lambda: client.reserve(1), "the end of the pause").body == b"d"


def test_it_takes_options_and_refuses_puts(tmp_path: Path) -> None:
    with BeanstalkdServer(tmp_path, max_job=100, log_file=8192, options=["-V"]) as server:
        with pytest.raises(greenstalk.JobTooBigError):
            server.put(b"x" * 101)
        assert server.stats()["binlog-max-size"] == 8192
        server.refuse_puts()
        with pytest.raises(greenstalk.DrainingError):
            server.put(b"x")


def test_one_that_cannot_start_says_why(tmp_path: Path) -> None:
    server = BeanstalkdServer(tmp_path, options=["--no-such-option"])
    began = time.monotonic()
    with pytest.raises(AssertionError, match="no-such-option"):
        server.start()
    assert time.monotonic() - began < 10
