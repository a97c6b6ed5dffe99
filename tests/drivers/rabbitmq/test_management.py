"""What the management plugin tells: names of queues, reserved jobs, and what drops jobs."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import quote

import pytest
from pydantic import ValidationError

from qframe.contracts.backend import Capability
from qframe.contracts.queue import Sizes
from qframe.drivers.rabbitmq import checks
from qframe.drivers.rabbitmq.backend import RabbitmqBackend
from qframe.drivers.rabbitmq.management import Management, QueueReport
from qframe.drivers.rabbitmq.settings import RabbitmqSettings
from qframe.exceptions import BackendUnavailable, BackendUnusable
from tests.drivers.broker.acts import begin, do, push
from tests.drivers.rabbitmq.conftest import Connect
from tests.support.process import wait_for
from tests.support.projects import RabbitmqProject
from tests.support.rabbitmq_server import ODD, RabbitmqServer
from tests.support.server_process import free_port


@pytest.fixture
def managed(server: RabbitmqServer, connect: Connect) -> RabbitmqBackend:
    """Give a backend that may ask the management plugin."""
    return connect(management=server.management)


def test_without_it_queues_cannot_be_listed(
    backend: RabbitmqBackend, managed: RabbitmqBackend
) -> None:
    assert Capability.LIST not in backend.capabilities
    assert Capability.LIST in managed.capabilities


def test_queues_with_messages_are_listed_at_once(
    server: RabbitmqServer, managed: RabbitmqBackend, connect: Connect, prefix: str
) -> None:
    assert managed.queues() == []
    push(connect(prefix=f"x{prefix}"), b"1", queue="elsewhere")
    with server.client() as channel:
        channel.queue_declare(f"{prefix}of_one_connection", exclusive=True)
        channel.queue_declare(f"{prefix}no name of ours", durable=True, auto_delete=False)
        push(managed, b"1", queue="mail-a")
        push(managed, b"1", queue="mail-b", delay=60)
        push(managed, b"1", queue="done")
        do(managed, begin(managed, "done"))
        assert managed.queues() == ["mail-a", "mail-b"]


def test_reserved_jobs_are_counted_after_some_seconds(managed: RabbitmqBackend) -> None:
    push(managed, b"1", b"2", b"3")
    job = begin(managed)
    wanted = Sizes(ready=2, reserved=1, approximate=True)
    wait_for(lambda: managed.sizes("default") == wanted, "the server's own numbers")
    do(managed, job)


def test_an_odd_vhost_and_password(server: RabbitmqServer) -> None:
    url = server.url_of("odd:p%40ss%2Fw%3Ard", quote(ODD, safe=""))
    settings = RabbitmqSettings(url=url, management=server.management)
    with pytest.raises(BackendUnusable, match="refuses the user"):  # it has no tag
        Management(settings).queues()
    management = server.management.replace("//", "//guest:guest@")
    settings = RabbitmqSettings(url=url, management=management)
    assert isinstance(Management(settings).queues(), list)
    assert "guest" not in Management(settings).where + repr(settings)


@pytest.mark.parametrize(
    "url", ["amqp://h", "http://", "http://u:hush@h:x", "http://u:hush@h/?x=1"]
)
def test_a_wrong_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValidationError) as raised:
        RabbitmqSettings(management=url)
    (fault,) = raised.value.errors(include_url=False, include_input=False, include_context=False)
    assert "hush" not in str(fault)


class _Answer(BaseHTTPRequestHandler):
    """Answers everything with the text of its path's place."""

    status, body = 200, b"<html>"

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(params=[(200, b"<html>"), (500, b""), (200, b'{"a": 1}'), (200, b"")])
def strange(request: pytest.FixtureRequest) -> Iterator[str]:
    """Give the URL of a server that is no RabbitMQ."""
    handler = type("Handler", (_Answer,), dict(zip(("status", "body"), request.param, strict=True)))
    with HTTPServer(("127.0.0.1", 0), handler) as http:
        threading.Thread(target=http.serve_forever).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


def test_what_is_no_rabbitmq_costs_no_job(
    server: RabbitmqServer, connect: Connect, strange: str
) -> None:
    backend = connect(management=strange)
    push(backend, b"1")
    with pytest.raises(BackendUnavailable, match=r"no RabbitMQ|500"):
        backend.queues()
    assert backend.sizes("default") == Sizes(ready=1, unknown=frozenset({"reserved"}))
    assert "management API cannot be asked" in backend.check().warnings[0]
    assert begin(backend).raw_body == b"1"


def test_nobody_listens_there(connect: Connect) -> None:
    backend = connect(management=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(BackendUnavailable, match="Connection refused"):
        backend.queues()


# -- what drops jobs ------------------------------------------------------------------------------


def _report(
    name: str = "p.mail",
    kind: str = "quorum",
    *,
    policy: Mapping[str, Any] = {},
    arguments: Mapping[str, Any] = {},
) -> QueueReport:
    return QueueReport(name, kind, 0, arguments, ("p1",) if policy else (), policy)


@pytest.mark.parametrize(
    ("report", "says"),
    [
        (_report(), ""),
        (_report(kind="classic"), "classic queues may lose jobs"),
        (_report("p.default", "classic"), ""),  # told in more detail elsewhere
        (_report(policy={"delivery-limit": 5}), "the policy p1 has delivery-limit = 5"),
        (_report(policy={"delivery-limit": -1}), ""),
        (_report(arguments={"x-delivery-limit": 5}), "an argument has delivery-limit = 5"),
        (_report(policy={"message-ttl": 1000}), "drops a job that has waited so long"),
        (_report(policy={"expires": 1000}), "drops the queue with its jobs"),
        (_report(policy={"max-length": 9}), "drops the oldest jobs"),
        (_report(policy={"max-length": 9, "overflow": "reject-publish"}), ""),
        (_report(policy={"max-length": 9, "dead-letter-exchange": "dead"}), "exchange 'dead'"),
        (_report(policy={"dead-letter-exchange": "dead"}), ""),
    ],
)  # fmt: skip
def test_what_could_drop_jobs_is_named(report: QueueReport, says: str) -> None:
    found = checks.of_queues([report], RabbitmqSettings(prefix="p."))
    assert len(found) == bool(says)
    assert all(says in each and each.endswith(": queue mail") for each in found)


def test_queues_with_the_same_trouble_are_one_line() -> None:
    reports = [_report(f"q{number}", policy={"message-ttl": 1}) for number in range(7)]
    (text,) = checks.of_queues(reports, RabbitmqSettings())
    assert text.endswith(": queue q0, q1, q2, q3, q4 and 2 more")


def test_the_longest_job_is_what_the_server_allows() -> None:
    assert checks.longest_job([], RabbitmqSettings()) == 1800
    assert checks.longest_job([], RabbitmqSettings(consumer_timeout=0)) == float("inf")
    reports = [
        _report(policy={"consumer-timeout": 60_000}),
        _report(arguments={"x-consumer-timeout": 9000}),
    ]
    assert checks.longest_job(reports, RabbitmqSettings()) == 9


def test_check_and_a_worker_of_a_pattern(tmp_path: Any, server: RabbitmqServer) -> None:
    with RabbitmqProject(tmp_path / "app", server, management=server.management) as project:
        project.write(
            "slow.py",
            "from qframe import Queueable\n\n\nclass Slow(Queueable):\n"
            "    timeout = 3600\n\n    def handle(self) -> None: ...\n",
        )
        project.configure('jobs = ["slow", "jobs"]\n')
        found = project.qframe("check", "--connection", "rabbitmq")
        assert "slow.Slow has timeout = 3600, and the server gives a job" in found.out
        for name in ("mail-a", "mail-b", "other"):
            project.push("Note", {"word": name}, queue=name)
        assert project.queue.queues() == ["mail-a", "mail-b", "other"]
        project.drain("rabbitmq", "--queue", "mail-*")
        assert project.done() == ["mail-a", "mail-b"]
