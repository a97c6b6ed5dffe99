"""Filters: one syntax by which failed jobs are chosen."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from qframe.contracts import FailedJob, History
from qframe.exceptions import ConfigurationError
from qframe.failed.causes import cause_of
from qframe.failed.filters import ENDED, RUNNING, WAITING, Filter, JobList, quoted


def record(**over: Any) -> FailedJob:
    payload = {"uuid": "u-1", "job": "app.SendMail", "data": over.pop("data", {})}
    values = {
        "uuid": "u-1", "connection": "redis", "queue": "mail", "name": "app.SendMail",
        "attempts": 1, "history": History(), "failed_at": time.time() - 600,
        "exception": "Traceback (most recent call last):\nTimeoutError: no answer, host 7\n",
        "payload": json.dumps({**payload, **over.pop("message", {})}).encode(), **over,
    }  # fmt: skip
    return FailedJob(**values)


DATA = {
    "user_id": 7,
    "is-new": False,
    "to": "a b",
    "deep": {"flag": True, "none": None},
    "ids": [1, "x"],
}


@pytest.mark.parametrize(
    "text",
    [
        "", "  ",
        "queue:mail", "queue:m*", "queue:sms,mail", "!queue:sms", "queue:[lm]ail",
        "class:app.SendMail", "class:*.SendMail", "connection:redis", "uuid:u-*",
        "error:timeout", "error:TimeoutError", "error:nothing,ANSWER", 'error:"answer, host"',
        "!error:refused",
        "older:5m", "older:300", "older:0.1h", "newer:1h", "newer:11m", "newer:1w", "!older:1d",
        "args.user_id:7", "args.user_id:6,7", 'args.to:"a b"', "args.deep.flag:true",
        "args.deep.none:null", "args.ids:x", "args.ids:1", "args.is-new:false",
        "!args.user_id:8", "!args.missing:1",
        "tag:tenant:7", "tag:tenant:*", "tag:a,urgent", "!tag:tenant", "!tag:tenant:70",
        "sendmail", "u-1", "timeout", '"no answer"', "!refused",
        "queue:mail class:app.SendMail error:Timeout older:5m args.user_id:7",
    ],
)  # fmt: skip
def test_it_chooses(text: str) -> None:
    assert Filter(text).fits(record(data=DATA, message={"tags": ["urgent", "tenant:7"]}))


@pytest.mark.parametrize(
    "text",
    [
        "queue:mai", "queue:MAIL", "!queue:mail", "!queue:sms,mail", "class:SendMail",
        "connection:r", "uuid:u", "error:refused", "older:1h", "newer:5m", "cause:0000000000",
        "args.user_id:8", "args.user:7", "args.deep:true", "args.to:a", "args.deep.flag:True",
        "args.user_id.more:7", "nowhere", "tag:tenant:7", "tag:*", "queue:mail error:refused",
    ],
)  # fmt: skip
def test_it_does_not(text: str) -> None:
    assert not Filter(text).fits(record(data=DATA))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("queu:mail", "there is no filter queu: (did you mean 'queue'?); there are uuid:, queue:,"),
        ("wrong:1", "there is no filter wrong:; there are"),
        ("queue:", "cannot be read at 'queue:'"),
        ("queue:a,", "queue: has an empty value"),
        ('queue:""', "queue: has an empty value"),
        ('error:"open', "cannot be read"),
        ("older:soon", "older: takes a time like 90s, 5m, 2h, 3d or 1w, not 'soon'"),
        ("newer:1h,2h", "newer: takes a time"),
        ("older:-5m", "not '-5m'"),
        ("args.:1", "there is no filter args.:"),
        ("!", "cannot be read at '!'"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        Filter(text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_the_cause_of_a_job() -> None:
    job = record()
    assert Filter(f"cause:{cause_of(job).key}").fits(job)


def test_one_queue_is_known_to_be_it() -> None:
    assert Filter("error:x queue:mail").queue == "mail"
    for several in ("queue:m*", "queue:a,b", "!queue:a", "error:x"):
        assert Filter(several).queue is None


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("", ["mail", "sms", "bulk"]),
        ("class:app.A connection:redis", ["mail", "sms", "bulk"]),
        ("queue:mail,sms", ["mail", "sms"]),
        ("!queue:mail", ["sms", "bulk"]),
        ("queue:*s* !queue:sm*", []),
    ],
)
def test_it_says_in_which_queues_and_connections_jobs_can_be(text: str, allowed: list[str]) -> None:
    chosen = Filter(text)
    assert [each for each in ("mail", "sms", "bulk") if chosen.allows("queue", each)] == allowed
    assert chosen.allows("connection", "database") is ("connection" not in text)


def test_secrets_are_not_found_by_guessing() -> None:
    hidden = record(data={"token": "abc", "user_id": 7}, message={"secrets": ["token"]})
    assert not Filter("args.token:abc").fits(hidden)
    assert Filter("args.user_id:7").fits(hidden)


@pytest.mark.parametrize(
    "payload", [b"", b"\xff", b"[]", b'{"data": [1]}', b'{"data": "x", "tags": 7}']
)
def test_what_is_no_payload_has_no_data(payload: bytes) -> None:
    assert not Filter("args.a:1").fits(record(payload=payload))
    assert Filter("!args.a:1").fits(record(payload=payload))
    assert not Filter("tag:*").fits(record(payload=payload))


@pytest.mark.parametrize(
    ("listed", "text", "said"),
    [
        (WAITING, "error:x", "there is no filter error: of jobs that wait; there are uuid:,"),
        (WAITING, "!host:web", "there is no filter host: of jobs that wait;"),
        (RUNNING, "cause:a", "there is no filter cause: of jobs that run;"),
        (ENDED, "args.user:7", "there is no filter args.user: of jobs that have ended;"),
        (WAITING, "eror:x", "there is no filter eror:;"),
        (WAITING, "state:runing", "there is no state 'runing' (did you mean 'running'?); there"),
    ],
)
def test_what_a_list_does_not_know_of_its_jobs_is_said(
    listed: JobList, text: str, said: str
) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Filter(text, listed)
    assert said in str(raised.value)


@pytest.mark.parametrize("text", ["state:run*", "state:ready,delayed", "!state:failed"])
def test_states_may_be_patterns(text: str) -> None:
    assert not Filter(text, RUNNING).is_empty


@pytest.mark.parametrize("name", ["app.A", "My Job \U0001f680", 'a "b" c', "a[b]*?", "x,y", "a\nb"])
def test_any_name_can_be_asked_for(name: str) -> None:
    assert Filter(f"class:{quoted(name)}").fits(record(name=name))
    assert not Filter(f"class:{quoted(name)}").fits(record(name=f"{name}2"))
