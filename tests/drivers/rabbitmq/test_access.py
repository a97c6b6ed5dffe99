"""Addresses, logins and vhosts; what `qframe check` says; passwords are shown nowhere."""

from __future__ import annotations

import logging

import pytest
from pydantic import ValidationError

from qframe.drivers.rabbitmq.backend import RabbitmqBackend
from qframe.drivers.rabbitmq.settings import Login, RabbitmqSettings
from qframe.exceptions import BackendUnavailable, BackendUnusable
from tests.drivers.broker.acts import begin, push
from tests.drivers.rabbitmq.conftest import Connect
from tests.support.rabbitmq_server import RabbitmqServer
from tests.support.server_process import free_port


@pytest.mark.parametrize(
    ("url", "login", "address"),
    [
        ("amqp://h", Login("guest", "guest", "/"), ("h", 5672)),
        ("amqp://h/", Login("guest", "guest", "/"), ("h", 5672)),
        ("amqps://u:p@h/%2F", Login("u", "p", "/"), ("h", 5671)),
        ("amqp://u:p%40%2F%3A@h:1/v", Login("u", "p@/:", "v"), ("h", 1)),
        ("amqp://u@[::1]:1/a%2Fb%20c", Login("u", "guest", "a/b c"), ("::1", 1)),
    ],
)
def test_what_a_url_says(url: str, login: Login, address: tuple[str, int]) -> None:
    settings = RabbitmqSettings(url=url)
    assert settings.login() == login
    assert settings.addresses() == [address]


@pytest.mark.parametrize(
    "url", ["redis://u:hush@h", "amqp://u:hush@", "amqp://u:hush@h:x", "amqp://u:hush@h/v?x=1"]
)
def test_a_wrong_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValidationError) as raised:
        RabbitmqSettings(url=url)
    (fault,) = raised.value.errors(include_url=False, include_input=False, include_context=False)
    assert "hush" not in str(fault)


def test_tls_files_need_tls() -> None:
    with pytest.raises(ValidationError, match="amqps"):
        RabbitmqSettings(ca="/etc/ca.pem")
    with pytest.raises(ValidationError, match="belong together"):
        RabbitmqSettings(url="amqps://h", cert="/etc/cert.pem")


def test_an_odd_vhost_and_password(server: RabbitmqServer, connect: Connect) -> None:
    backend = connect(url=server.url_of("odd:p%40ss%2Fw%3Ard", "odd%2F%20%25vhost"))
    push(backend, b"1")
    assert begin(backend).raw_body == b"1"
    assert "p%40ss" not in backend.described() + repr(backend.settings)


@pytest.mark.parametrize(
    ("user", "vhost", "says"),
    [
        ("guest:hush", "%2F", "ACCESS_REFUSED"),
        ("guest:guest", "none", "vhost none not found"),
        ("weak:hidden", "%2F", "ACCESS_REFUSED"),
        ("odd:p%40ss%2Fw%3Ard", "%2F", "access to vhost"),
    ],
)
def test_a_login_that_cannot_work_is_not_tried_again(
    server: RabbitmqServer, connect: Connect, user: str, vhost: str, says: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    backend = connect(url=server.url_of(user, vhost))
    with pytest.raises(BackendUnusable, match=says) as raised:
        push(backend, b"1")
    password = user.partition(":")[2]
    if password != "guest":
        assert password not in str(raised.value) + caplog.text


def test_the_next_host_is_tried(server: RabbitmqServer, connect: Connect) -> None:
    backend = connect(url=f"amqp://127.0.0.1:{free_port()}", hosts=[server.host_and_port])
    push(backend, b"1")
    assert begin(backend).raw_body == b"1"


def test_nobody_listens(connect: Connect) -> None:
    port = free_port()
    backend = connect(url=f"amqp://u:hush@127.0.0.1:{port}")
    with pytest.raises(BackendUnavailable, match=f"amqp://127.0.0.1:{port}: Connection refused"):
        push(backend, b"1")


def test_another_server_listens(redis_running: object, connect: Connect) -> None:
    backend = connect(url=f"amqp://127.0.0.1:{redis_running.port}", timeout=1, connect_timeout=1)  # type: ignore[attr-defined]
    with pytest.raises(BackendUnavailable):
        push(backend, b"1")


# -- check --------------------------------------------------------------------------------------


def test_a_sound_queue_has_no_warning(backend: RabbitmqBackend) -> None:
    assert backend.check().warnings == ()
    push(backend, b"1")
    health = backend.check()
    assert health.version.startswith("RabbitMQ ")
    assert health.warnings == ()


def test_a_classic_queue_is_named_and_works(
    server: RabbitmqServer, backend: RabbitmqBackend, prefix: str
) -> None:
    with server.client() as channel:
        channel.queue_declare(f"{prefix}default", durable=True, auto_delete=False)
    (warning,) = backend.check().warnings
    assert "default is no quorum queue" in warning
    push(backend, b"1")
    assert begin(backend).raw_body == b"1"


def test_a_delivery_limit_is_named(
    server: RabbitmqServer, backend: RabbitmqBackend, prefix: str
) -> None:
    with server.client() as channel:
        arguments = {"x-queue-type": "quorum", "x-delivery-limit": 3}
        channel.queue_declare(
            f"{prefix}default", durable=True, auto_delete=False, arguments=arguments
        )
    (warning,) = backend.check().warnings
    assert "default has a delivery limit" in warning
