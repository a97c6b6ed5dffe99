"""Workers on two hosts, with messages on a server that keeps no facts, share a SQL database."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.projects import BeanstalkdProject, RedisProject, ServerProject, emptied
from tests.support.sql_server import SqlServer

Host = Callable[..., ServerProject]
_LINKS = 100
_DISPATCH = """
from qframe import batch, chain, dispatch
from jobs import Flaky, Note, Steps
dispatch(Flaky(failures=1, word="once"))
dispatch(Steps(steps=3))
chain([Note(word="first"), Note(word="second"), Note(word="third")]).dispatch()
jobs = [Note(word="one"), Note(word="two"), Flaky(word="never")]
print(batch(jobs).allow_failures().dispatch().id)
"""


def sharing(url: str) -> str:
    return (
        'store.driver = "shared"\nfailed.driver = "shared"\n'
        f'[connections.shared]\ndriver = "database"\nurl = "{url}"\n'
    )


@pytest.fixture(params=["own_postgres", pytest.param("own_mariadb", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest) -> SqlServer:
    found: SqlServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["beanstalkd", "redis"])
def host(request: pytest.FixtureRequest, tmp_path: Path, store: SqlServer) -> Iterator[Host]:
    """Give what makes a host: a project folder of its own, with the same messages and store."""
    made: list[ServerProject] = []

    def make(name: str, **connection: object) -> ServerProject:
        if request.param == "beanstalkd":
            server = request.getfixturevalue("beanstalkd_running")
            if not made:
                emptied(server)
            toml = sharing(store.url)
            made.append(BeanstalkdProject(tmp_path / name, server, toml, **connection))
        else:
            url = request.getfixturevalue("redis_running").url
            there = {"url": url, "prefix": tmp_path.name, **connection}
            made.append(RedisProject(tmp_path / name, sharing(store.url), **there))
        return made[-1]

    yield make
    for each in reversed(made):
        each.__exit__()


def test_without_tables_it_is_one_line(host: Host) -> None:
    here = host("here")
    for words in (("failed",), ("batches",), ("workers",)):
        said = here.qframe(*words)
        assert said.code == 2
        assert said.one_line().endswith(": run `qframe migrate`")


def test_hosts_share_what_the_store_keeps(host: Host) -> None:
    here, there = host("here"), host("there")
    assert here.qframe("migrate").code == 0
    said = here.python(_DISPATCH)
    assert said.code == 0, said.err
    here.drain("--max-jobs", 3)
    there.drain()
    words = here.done() + there.done()
    assert sorted(words) == ["first", "one", "second", "third", "two"]
    listed = [json.loads(there.qframe(name, "--json").out) for name in ("failed", "batches")]
    assert len(listed[0]) == 2
    assert said.out.strip() in json.dumps(listed[1])
    assert here.qframe("retry", "all").code == 0
    there.drain()
    assert len(there.failed()) == 2, "they failed again, as they do at each first attempt"


def test_a_worker_killed_in_a_chain_is_replaced_by_one_on_another_host(host: Host) -> None:
    here, there = host("here", retry_after=3), host("there", retry_after=3)
    assert here.qframe("migrate").code == 0
    said = here.python(
        "from qframe import chain\nfrom jobs import Kill, Note\n"
        'chain([Note(word="before"), Kill(times=1), Note(word="after")]).dispatch()\n'
    )
    assert said.code == 0, said.err
    assert here.work("--tries", 2).wait() == -signal.SIGKILL
    there.work("--tries", 2)
    there.wait_for_note("note", "after")
    assert there.notes("end") == [["end", "kill", "2"]]


def test_the_store_is_killed_in_a_chain(host: Host, store: SqlServer) -> None:
    here = host("here")
    assert here.qframe("migrate").code == 0
    said = here.python(
        "from qframe import chain\nfrom jobs import Note\n"
        f'chain([Note(word=f"n{{i}}") for i in range({_LINKS})]).dispatch()\n'
    )
    assert said.code == 0, said.err
    worker = here.work("--tries", 1)
    here.wait_for_note("note", "n20")
    store.restart(kill=True)
    here.wait_for_note("note", f"n{_LINKS - 1}", seconds=60)
    assert worker.stop() == 0
    assert list(dict.fromkeys(here.done())) == [f"n{i}" for i in range(_LINKS)]
    assert "Traceback" not in worker.out + worker.err
