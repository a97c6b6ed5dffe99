"""The extension: settings, jobs in an application context, the command."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from flask import Flask, current_app, g, has_app_context

from qframe import (
    ConfigurationError,
    QueueManager,
    Worker,
    WorkerOptions,
    dispatch,
    manager,
    queueable,
)
from qframe.drivers.database.backend import DatabaseBackend
from qframe.flask import QFrame
from qframe.jobs import execution
from qframe.testing import drain, run
from tests.flask.conftest import ROOT
from tests.flask.jobs import Look, LookOnLoop, look, said


def test_each_job_has_a_context_of_its_own_in_a_worker(app: Flask) -> None:
    ends: list[object] = []
    app.teardown_appcontext(lambda error: ends.append(error and str(error)))
    with app.app_context():
        g.count = 10
        look.dispatch().send()
        look.dispatch(fails=True).send()
        drain()
        assert g.count == 10
        ended_inside = list(ends)
    assert said == [("shop", 1), ("shop", 2)] * 2
    assert ended_inside == [None, "as asked"]
    assert not has_app_context()


def test_all_hooks_of_an_attempt_share_it_and_those_after_it_have_another(app: Flask) -> None:
    run(Look(fails=True)).assert_failed_with(ValueError)
    assert said == [("shop", 1), ("shop", 2), ("shop", 3), ("shop", 1)]


def test_jobs_on_a_loop_have_one_each(app: Flask) -> None:
    ends: list[object] = []
    app.teardown_appcontext(ends.append)

    async def both() -> None:
        async def one() -> None:
            await execution.perform_on_loop(LookOnLoop())
            await execution.call_hook_on_loop(LookOnLoop(), "succeeded")

        await asyncio.gather(one(), one())

    asyncio.run(both())
    assert said == [("shop", 1)] * 4
    assert ends == [None] * 4


def test_a_teardown_function_that_raises_has_the_job_tried_again(app: Flask) -> None:
    @app.teardown_appcontext
    def end(_: object) -> None:
        raise RuntimeError("no commit")

    run(look.job()).assert_failed_with(RuntimeError, "no commit")


def test_settings_are_those_of_the_application(app: Flask) -> None:
    assert manager.default().settings.default == "memory"
    queue: QFrame = app.extensions["qframe"]
    assert queue.manager is manager.default()


def test_a_factory_may_configure_after_it_has_joined(alone: None) -> None:
    queue = QFrame()
    app = Flask("late")
    queue.init_app(app)
    app.config["QFRAME"] = {"default": "null", "root": str(ROOT)}
    assert queue.manager.settings.default == "null"
    other = Flask("other")
    other.config["QFRAME"] = {"default": "memory"}
    queue.init_app(other)
    assert queue.manager.settings.default == "memory"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"defualt": "redis"}, "unknown key 'defualt' (did you mean 'default'?)"),
        (["redis"], "must be a dict, not list"),
        ({"SYNC_IN_TESTS": "no"}, "SYNC_IN_TESTS must be True or False"),
        ({"metrics": "maybe"}, "metrics"),
        ({"default": "radis"}, "unknown connection 'radis'"),
    ],
)
def test_wrong_settings_are_one_line(alone: None, given: Any, text: str) -> None:
    app = Flask("wrong")
    app.config["QFRAME"] = given
    queue = QFrame(app)
    with pytest.raises(ConfigurationError) as caught:
        queue.manager.connection()
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_settings_a_file_is_looked_for(alone: None, fresh: Any) -> None:
    (fresh / "qframe.toml").write_text('default = "null"\n')
    assert QFrame(Flask("bare")).manager.settings.default == "null"


ran: list[str] = []


@queueable(connection="redis")
def elsewhere() -> None:
    ran.append(current_app.name)


def test_in_tests_jobs_run_inside_the_dispatch(alone: None) -> None:
    app = Flask("tested")
    app.config["QFRAME"] = {
        "default": "main",
        "root": ROOT,
        "connections": {"main": {"driver": "redis", "url": "redis://nowhere:1"}},
        "store": {"driver": "main"},
    }
    QFrame(app)
    app.testing = True
    ran.clear()
    elsewhere.dispatch().send()
    dispatch(Look()).send()
    assert ran == ["tested"]
    assert said == [("tested", 1), ("tested", 2), ("tested", 3)]
    assert {manager.default().connection(n).settings.driver for n in ("main", "redis")} == {"sync"}


def test_in_tests_connections_can_be_kept(alone: None) -> None:
    app = Flask("tested")
    app.config.update(TESTING=True, QFRAME={"default": "memory", "SYNC_IN_TESTS": False})
    QFrame(app)
    dispatch(Look()).send()
    assert said == []
    assert isinstance(manager.default(), QueueManager)


def test_missing_tables_name_the_command_that_reads_these_settings(app: Flask) -> None:
    there = {"driver": "database", "url": "postgresql://me@127.0.0.1/shop"}
    pytest.importorskip("psycopg")
    app.config["QFRAME"] = {"default": "main", "connections": {"main": there}}
    backend = QFrame(app).manager.connection().backend
    assert isinstance(backend, DatabaseBackend)
    assert backend.settings.migrate_command == "flask qframe migrate"


def test_the_command_is_the_whole_of_qframe(app: Flask) -> None:
    runner = app.test_cli_runner()
    look.dispatch().send()
    listed = runner.invoke(args=["qframe", "--help"])
    assert listed.exit_code == 0
    assert "work" in listed.output
    assert "retry" in listed.output
    sizes = runner.invoke(args=["qframe", "size", "--queue", "q", "--json"])
    assert sizes.exit_code == 0, sizes.output
    wrong = runner.invoke(args=["qframe", "wrok"])
    assert wrong.exit_code == 2
    app.config["QFRAME"] = {"defualt": "x"}
    app.extensions["qframe"].begin_anew()
    refused = runner.invoke(args=["qframe", "size"])
    assert refused.exit_code == 2
    assert "unknown key 'defualt'" in refused.output
    assert "Traceback" not in refused.output


@pytest.fixture
def applications(alone: None) -> dict[str, Flask]:
    """Two applications in one process, one extension for both."""
    queue = QFrame()
    found = {name: Flask(name) for name in ("shop", "blog")}
    for name, each in found.items():
        each.config["QFRAME"] = {
            "default": name,
            "root": ROOT,
            "connections": {name: {"driver": "memory"}},
        }
        queue.init_app(each)
    return found


def test_two_applications_have_their_own_connections(applications: dict[str, Flask]) -> None:
    for name, each in applications.items():
        with each.app_context():
            dispatch(Look()).send()
            assert manager.default().settings.default == name
            assert each.extensions["qframe"].manager is manager.default()
    assert manager.default().settings.default == "blog"
    for each in applications.values():
        with each.app_context():
            assert manager.default().connection().size("q") == 1


@pytest.mark.parametrize("concurrency", [1, 2])
def test_the_jobs_of_two_applications_run_in_their_own_contexts(
    applications: dict[str, Flask], concurrency: int
) -> None:
    options = WorkerOptions(queues=("q",), stop_when_empty=True, memory=0, concurrency=concurrency)
    workers: dict[str, Worker] = {}
    for name, each in applications.items():
        with each.app_context():
            workers[name] = Worker(options=options)
            look.dispatch().send()
            dispatch(LookOnLoop()).send()
    for name in ("shop", "blog", "shop"):
        workers[name].run()
    names = [said_by[0] for said_by in said if isinstance(said_by, tuple)]
    assert names == ["shop"] * 4 + ["blog"] * 4


@queueable(queue="q")
def dispatches() -> None:
    look.dispatch().send()


def test_a_job_dispatches_to_its_own_application(applications: dict[str, Flask]) -> None:
    with applications["shop"].app_context():
        dispatches.dispatch().send()
        worker = Worker(options=WorkerOptions(queues=("q",), max_jobs=1, memory=0))
    worker.run()
    sizes = []
    for each in applications.values():
        with each.app_context():
            sizes.append(manager.default().connection().size("q"))
    assert sizes == [1, 0]
