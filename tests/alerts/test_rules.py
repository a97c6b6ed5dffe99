"""Rules in plain text: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

import pytest

from qframe import QueueManager, rules
from qframe.exceptions import ConfigurationError
from qframe.rules import InvalidRule, Rule, parse


@pytest.mark.parametrize("subject", rules.SUBJECTS.values(), ids=lambda each: each.words)
def test_the_example_of_each_subject_is_a_rule(subject: rules.Subject) -> None:
    read = parse(subject.example)
    assert read.subject in {subject.words, rules.DOWN}
    assert read.text == subject.example


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("wait > 60s on mail", {"subject": "wait", "limit": 60, "queues": ("mail",)}),
        ("wait>1.5m", {"subject": "wait", "limit": 90}),
        ("wait > 60", {"subject": "wait", "limit": 60}),
        ("size > 500 on a, b.*", {"subject": "size", "limit": 500, "queues": ("a", "b.*")}),
        ("failed > 10 in 5m", {"subject": "failed", "limit": 10, "span": 300}),
        (
            "failed > 2.5% in 10m of app.SendMail at redis",
            {
                "subject": "failed", "limit": 2.5, "percent": True, "span": 600,
                "job": "app.SendMail", "connection": "redis",
            },
        ),
        (
            "done < 1 in 1h on mail for 5m",
            {
                "subject": "done", "above": False, "limit": 1, "span": 3600,
                "queues": ("mail",), "lasting": 300,
            },
        ),
        ("no worker", {"subject": "no worker"}),
        ("no worker on mail", {"subject": "no worker", "queues": ("mail",)}),
        ("dead worker", {"subject": "dead worker"}),
        ("lag of the relay > 30s", {"subject": "lag of the relay", "limit": 30}),
        ("connection redis down", {"subject": "down", "connection": "redis"}),
        ("connection down for 1m", {"subject": "down", "lasting": 60}),
        ("timed out > 3 in 1d", {"subject": "timed out", "limit": 3, "span": 86400}),
    ],
)  # fmt: skip
def test_what_a_rule_means(text: str, read: dict[str, object]) -> None:
    assert parse(text) == Rule(" ".join(text.split()), **read)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("waits > 60s", "begins with 'waits' (did you mean 'wait'?)"),
        ("no wroker on mail", "begins with 'no wroker' (did you mean 'no worker'?)"),
        ("conection redis down", "(did you mean 'connection'?)"),
        ("wait 60s", "has '60s' where '>' or '<' belongs"),
        ("wait", "ends where '>' or '<' belongs"),
        ("wait => 60s", "has '=' where"),
        ("wait < 60s", "has '<' where '>' belongs"),
        ("wait > 60x", "has '60x' where a time belongs (30s, 5m, 2h, 1d)"),
        ("behind > 99999999999d within 3h", "has '99999999999d', and a time is at most 366d"),
        ("wait > 5s for 367d", "has '367d', and a time is at most 366d"),
        ("size > many", "has 'many' where a number belongs"),
        ("size > 5%", "has '5%' where a number belongs"),
        ("failed > 10", "says not in how long: add 'in 5m'"),
        ("failed > 10 in 5s", "from 1m to 1d"),
        ("failed > 10 inn 5m", "has 'inn' (did you mean 'in'?)"),
        ("wait > 5s of app.A", "has 'of', which 'wait' does not take; it takes 'on', 'at', 'for'"),
        ("wait > 5s on", "ends after 'on'"),
        ("wait > 5s on a on b", "has 'on' twice"),
        ("wait > 5s on m@il", "names a queue wrongly: 'm@il' is not a queue name"),
        ("wait > 5s on [z-a]", "names a queue wrongly"),
        ("connection redis donw", "has 'donw' where 'down' belongs (did you mean 'down'?)"),
        ("dead worker > 3", "'dead worker' is no number"),
        ("", "is no rule"),
        ("wait > 5s\x1b[31m", "is no rule"),
        ("x" * 1000, "is no rule"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(text: str, said: str) -> None:
    with pytest.raises(InvalidRule) as raised:
        parse(text)
    line = str(raised.value)
    assert said in line
    assert line.isprintable()
    assert len(line) < 400


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"alerts": {"rules": ["wait > 5s", "waits > 5s"]}}, "alerts.rules.1: "),
        ({"alerts": {"rules": ["connection rediss down"]}}, "(did you mean 'redis'?)"),
        ({"alerts": {"rules": ["wait > 1s at nowhere"]}}, "names the connection 'nowhere'"),
        ({"alerts": {"rules": ["lag of the relay > 3s"]}}, "needs an outbox"),
        ({"alerts": {"rules": ["failed > 1 in 5m"]}, "metrics": False}, "needs metrics = true"),
        ({"alerts": {"rules": ["behind > 9 within 3h"]}, "metrics": False}, "needs metrics = true"),
        ({"alerts": {"ruls": []}}, "unknown key 'alerts.ruls' (did you mean 'rules'?)"),
        ({"alerts": {"webhook": {"url": "ftp://x"}}}, "alerts.webhook.url: "),
        ({"alerts": {"mail": {"to": ["a@b\nBcc: c@d"], "from": "q@x"}}}, "is no mail address"),
        (
            {"alerts": {"mail": {
                "to": ["a@b"], "from": "q@x", "host": "mx", "tls": "none", "user": "u",
                "password": "p4ss-w0rd",
            }}},
            "a password needs tls",
        ),
        ({"alerts": {"connection": "databse"}}, "(did you mean 'database'?)"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_one_line(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        QueueManager(settings)
    assert said in str(raised.value)
    assert "p4ss-w0rd" not in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "Value error" not in str(raised.value)


@pytest.mark.usefixtures("fresh")
def test_secrets_are_not_shown() -> None:
    queues = QueueManager(
        {
            "alerts": {
                "rules": ["dead worker"],
                "webhook": {"url": "https://hooks.example/T0/s3cr3t", "secret": "s3cr3t" * 4},
                "mail": {
                    "to": ["a@b.example"], "from": "q@b.example", "user": "u", "password": "s3cr3t",
                },
            }
        }
    )  # fmt: skip
    assert "s3cr3t" not in repr(queues.settings)
    assert "s3cr3t" not in queues.settings.model_dump_json()
