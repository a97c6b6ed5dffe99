"""A webhook that refuses, and a program that takes too long; both bounded in time."""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from qframe.alerts.channel import NotSent
from qframe.alerts.channels import CommandChannel, Webhook
from qframe.alerts.life import Notification
from qframe.config import CommandSettings, WebhookSettings
from tests.alerts.conftest import SECRET, Hook
from tests.alerts.test_mail import ELSEWHERE, HERE, certificate, telling
from tests.support.pages import docs_page
from tests.support.process import wait_for

DOCS = docs_page("alerts.md")


def webhook(hook: Hook, **more: Any) -> Webhook:
    return Webhook(WebhookSettings.model_validate({"url": hook.url, "secret": SECRET, **more}))


def test_what_is_posted(hook: Hook) -> None:
    webhook(hook).send(telling("evil\r\nX: y"))
    ((path, headers, body),) = hook.posts
    assert path == "/hook?to=ops"
    assert headers["Content-Type"] == "application/json"
    assert "X" not in headers
    said = json.loads(body)
    assert (said["event"], said["rule"], said["subject"]) == ("raised", "run > 1m", "x")
    assert said["text"] == "evil X: y [run > 1m]"
    assert hook.told == ["raised"]


def test_the_signature_is_verified_as_the_docs_say(hook: Hook) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(snippet, names)
    verified = names["verified"]
    webhook(hook).send(telling())
    ((_, headers, body),) = hook.posts
    assert verified(SECRET, headers, body)
    assert not verified("another-secret-0", headers, body)
    assert not verified(SECRET, headers, body + b" ")
    assert not verified(SECRET, {**headers, "Qframe-Signature": ""}, body)
    old = {**headers, "Qframe-Timestamp": str(int(time.time()) - 3600)}
    assert not verified(SECRET, old, body)
    assert not verified(SECRET, {}, body)


@pytest.mark.parametrize("status", [400, 404, 500, 503])
def test_a_refusal_is_said_without_the_address(hook: Hook, status: int) -> None:
    hook.status = status
    with pytest.raises(NotSent) as raised:
        webhook(hook).send(telling())
    assert str(raised.value) == f"127.0.0.1 answered {status}"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirection_is_not_followed(hook: Hook, status: int) -> None:
    hook.status, hook.headers = status, {"Location": hook.url}
    with pytest.raises(NotSent, match=f"answered {status}"):
        webhook(hook).send(telling())
    assert len(hook.posts) == 1


@pytest.mark.parametrize("how", ["hangs", "drips"])
def test_an_answer_that_does_not_end_is_left_in_time(hook: Hook, how: str) -> None:
    setattr(hook, how, True)
    began = time.monotonic()
    with pytest.raises(NotSent):
        webhook(hook, timeout=0.5).send(telling())
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("is_named", [True, False])
def test_over_tls_only_to_whom_the_certificate_names(tmp_path: Path, is_named: bool) -> None:
    ca, context = certificate(tmp_path, HERE if is_named else ELSEWHERE)
    got: list[bytes] = []

    def serve(listening: socket.socket) -> None:
        with (
            suppress(OSError),
            listening.accept()[0] as plain,
            context.wrap_socket(plain, server_side=True) as made,
        ):
            while not got or not got[-1].endswith(b"}"):
                got.append(made.recv(10_000))
            made.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        url = f"https://127.0.0.1:{listening.getsockname()[1]}/hook"
        channel = Webhook(WebhookSettings.model_validate({"url": url, "ca": ca}))
        if is_named:
            channel.send(telling())
        else:
            with pytest.raises(NotSent, match=r"not valid for '127\.0\.0\.1'"):
                channel.send(telling())
        thread.join()
    assert b"".join(got).startswith(b"POST /hook HTTP/1.1" if is_named else b"")
    assert bool(got) == is_named


def test_a_server_that_is_not_there() -> None:
    settings = WebhookSettings.model_validate({"url": "http://127.0.0.1:9/s3cr3t"})
    with pytest.raises(NotSent) as raised:
        Webhook(settings).send(telling())
    assert str(raised.value) == "127.0.0.1: ConnectionRefusedError"


def command(*words: object, timeout: float = 20) -> CommandChannel:
    return CommandChannel(CommandSettings(run=[str(each) for each in words], timeout=timeout))


def told(given: Notification | None = None) -> Notification:
    return given or telling("evil'; $(touch hacked) \x1b")


def test_a_program_gets_json_and_no_shell(tmp_path: Path) -> None:
    file = tmp_path / "got"
    command("sh", "-c", 'cat > "$0"; test "$1" = "a b;c"', file, "a b;c").send(told())
    assert json.loads(file.read_text())["subject"] == "x"


def test_a_program_that_reads_nothing_is_well() -> None:
    command("true").send(told(telling("x" * 300)))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("sh", "-c", "exit 3"), "sh: exit 3"),
        (("/no/such", "s3cr3t"), "/no/such: No such file or directory"),
    ],
)
def test_a_program_that_fails_is_named(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(NotSent) as raised:
        command(*words).send(told())
    assert str(raised.value) == said


def test_a_program_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"trap '' TERM; sleep 60 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait"
    with pytest.raises(NotSent, match=r"sh was killed after 1 s"):
        command("sh", "-c", script, timeout=1).send(told())
    child, parent = map(int, pids.read_text().split())

    def ended(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    assert ended(parent)
    wait_for(lambda: ended(child), "the end of its child")


def test_a_program_has_the_signals_of_any(tmp_path: Path) -> None:
    """Though the thread that starts it has all of them blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        file = tmp_path / "got"
        command("sh", "-c", f"exec grep SigBlk /proc/self/status > {file}").send(told())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert int(file.read_text().split()[1], 16) == 0
