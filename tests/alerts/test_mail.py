"""A mail of an alert, taken by a real server: over TLS, with a log-in, and with no header added."""

from __future__ import annotations

import datetime as dt
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, LoginPassword
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from qframe.alerts.channel import NotSent
from qframe.alerts.life import Alert, Notification
from qframe.alerts.mail import Mail
from qframe.config import MailSettings
from tests.support.server_process import free_port

PASSWORD = "p4ss-w0rd"


def telling(text: str = "mail waits") -> Notification:
    alert = Alert(
        id="i", rule="run > 1m", connection="c", what="x", value=1, since=0, seen=0, text=text
    )
    return Notification(id="i.1", channel="mail", event="raised", alert=alert, at=0, due=0)


def certificate(folder: Path, *names: x509.GeneralName) -> tuple[Path, ssl.SSLContext]:
    """Make a certificate for some names, signed by itself; gives it, and a server's context."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file, keyed = folder / "ca.pem", folder / "key.pem"
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    keyed.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file, keyed)
    return file, context


@contextmanager
def server(**options: Any) -> Iterator[SimpleNamespace]:
    """Give a server, what it was mailed, and who has logged in."""
    seen = SimpleNamespace(mails=[], logins=[], port=free_port())

    class Box:
        async def handle_DATA(  # noqa: N802 (the library's own)
            self, server: Any, session: Any, envelope: Any
        ) -> str:
            seen.mails.append((envelope, session))
            return "250 OK"

    def check(server: Any, session: Any, envelope: Any, mechanism: str, given: Any) -> AuthResult:
        assert isinstance(given, LoginPassword)
        seen.logins.append((given.login, given.password, session.ssl is not None))
        return AuthResult(success=given.password == PASSWORD.encode(), handled=False)

    controller = Controller(
        Box(), hostname="127.0.0.1", port=seen.port, authenticator=check, **options
    )
    controller.start()
    try:
        yield seen
    finally:
        controller.stop()


def mail(port: int, **more: Any) -> Mail:
    given = {"to": ["ops@a.example"], "from": "q@a.example", "port": port, **more}
    return Mail(MailSettings.model_validate(given))


HERE = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
ELSEWHERE = x509.DNSName("other.example")


def options(tls: str, context: ssl.SSLContext) -> dict[str, Any]:
    if tls == "tls":
        return {"ssl_context": context, "auth_require_tls": False}
    return {"tls_context": context, "require_starttls": True, "auth_required": True}


def test_a_mail_says_what_is_wrong_and_takes_no_header_from_a_text() -> None:
    with server() as seen:
        text = "evil\r\nBcc: all@b.example\x1b[31m\u2028ran"
        mail(seen.port, tls="none").send(telling(text))
    ((got, _),) = seen.mails
    said = got.content.decode()
    assert got.rcpt_tos == ["ops@a.example"]
    assert "\nBcc:" not in said
    assert "\x1b" not in said
    assert "Subject: [qframe] evil Bcc: all@b.example" in said


@pytest.mark.parametrize("tls", ["starttls", "tls"])
def test_it_is_encrypted_and_logs_in(tls: str, tmp_path: Path) -> None:
    ca, context = certificate(tmp_path, HERE)
    with server(**options(tls, context)) as seen:
        mail(seen.port, tls=tls, ca=ca, user="qframe", password=PASSWORD).send(telling())
    ((got, session),) = seen.mails
    assert got.rcpt_tos == ["ops@a.example"]
    assert session.authenticated
    assert seen.logins[0][:2] == (b"qframe", PASSWORD.encode())


@pytest.mark.parametrize("tls", ["starttls", "tls"])
def test_a_certificate_of_another_or_unknown_gets_no_password(tls: str, tmp_path: Path) -> None:
    ca, context = certificate(tmp_path, ELSEWHERE)
    with server(**options(tls, context)) as seen:
        login = {"user": "qframe", "password": PASSWORD, "tls": tls}
        with pytest.raises(NotSent, match=r"not valid for '127\.0\.0\.1'"):
            mail(seen.port, ca=ca, **login).send(telling())
        with pytest.raises(NotSent, match="self-signed"):
            mail(seen.port, **login).send(telling())
    assert (seen.mails, seen.logins) == ([], [])


def test_a_server_without_tls_gets_no_password() -> None:
    with (
        server(auth_require_tls=False) as seen,
        pytest.raises(NotSent, match="SMTPNotSupportedError"),
    ):
        mail(seen.port, user="qframe", password=PASSWORD).send(telling())
    assert (seen.mails, seen.logins) == ([], [])


def test_a_wrong_password_is_said_without_it(tmp_path: Path) -> None:
    ca, context = certificate(tmp_path, HERE)
    with server(**options("starttls", context)) as seen, pytest.raises(NotSent) as raised:
        mail(seen.port, ca=ca, user="qframe", password="wr0ng-one").send(telling())
    assert str(raised.value) == "127.0.0.1 answered 535"
    assert seen.mails == []


def test_a_server_that_says_nothing_is_left_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(NotSent):
            mail(silent.getsockname()[1], tls="none", timeout=0.3).send(telling())
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("tls", ["starttls", "tls"])
def test_one_that_is_slow_in_each_part_is_left_in_time(tls: str, tmp_path: Path) -> None:
    """Also when the time runs out in the handshake, after which no reading takes too long."""
    ca, context = certificate(tmp_path, HERE)
    over = threading.Event()

    def serve(listening: socket.socket) -> None:
        with suppress(OSError), listening.accept()[0] as made:
            if tls == "starttls":
                over.wait(0.4)
                for answer in (b"220 mx\r\n", b"250-mx\r\n250 STARTTLS\r\n", b"220 go on\r\n"):
                    made.sendall(answer)
                    made.recv(1000, socket.MSG_PEEK if answer.startswith(b"220 g") else 0)
            over.wait(0.3)
            with context.wrap_socket(made, server_side=True) as secure:
                while not over.wait(0.1):
                    secure.sendall(b"2")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        began = time.monotonic()
        with pytest.raises(NotSent):
            mail(listening.getsockname()[1], tls=tls, ca=ca, timeout=0.5).send(telling())
        took = time.monotonic() - began
        over.set()
        thread.join()
    assert took < 10
