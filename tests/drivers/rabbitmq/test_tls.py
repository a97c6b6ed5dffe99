"""TLS: the server's certificate and name are verified."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from qframe.drivers.memory.backend import MemoryBackend
from qframe.drivers.rabbitmq.backend import RabbitmqBackend
from qframe.drivers.rabbitmq.settings import RabbitmqSettings
from qframe.exceptions import BackendUnusable
from tests.drivers.broker.acts import begin, do, push
from tests.support.rabbitmq_server import RabbitmqServer
from tests.support.server_process import binary, free_port

pytestmark = pytest.mark.slow


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Make a certificate for 127.0.0.1 that signs itself, with its key beside it."""
    file = tmp_path / "server.crt"
    subprocess.run(
        [
            *(binary("openssl"), "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"),
            *("-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=rabbitmq"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(file.with_suffix(".key")), "-out", str(file)),
        ],
        check=True,
        capture_output=True,
    )
    return file


@pytest.fixture
def port(tmp_path: Path, certificate: Path) -> Iterator[int]:
    """Start a server, and give the port on which it speaks TLS."""
    port = free_port()
    config = f"""
listeners.ssl.1 = 127.0.0.1:{port}
ssl_options.cacertfile = {certificate}
ssl_options.certfile = {certificate}
ssl_options.keyfile = {certificate.with_suffix(".key")}
"""
    with RabbitmqServer(tmp_path / "server", config=config):
        yield port


def test_a_certificate_is_verified(port: int, certificate: Path) -> None:
    def connect(host: str, ca: str | None) -> RabbitmqBackend:
        facts = MemoryBackend()
        settings = RabbitmqSettings(url=f"amqps://{host}:{port}", ca=ca)
        return RabbitmqBackend("r", settings, lambda: facts)

    backend = connect("127.0.0.1", str(certificate))
    push(backend, b"x" * 200_000, b"2")
    job = begin(backend)
    assert job.raw_body == b"x" * 200_000
    assert do(backend, job).name == "APPLIED"
    backend.wait(["default"], 30)
    assert begin(backend).raw_body == b"2"
    backend.close()
    for host, ca in (("127.0.0.1", None), ("localhost", str(certificate))):
        with pytest.raises(BackendUnusable, match=r"certificate|match"):
            push(connect(host, ca), b"1")
