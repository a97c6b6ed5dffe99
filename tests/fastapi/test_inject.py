"""Jobs take the same dependencies as routes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from fastapi import BackgroundTasks, Depends, FastAPI, Header, Request, Response

from qframe import JobDefinitionError, QueueManager
from qframe.fastapi import BackgroundJobs, inject, use
from qframe.hooks import Hooks
from qframe.jobs import execution
from qframe.testing import drain, run
from tests.fastapi.conftest import ROOT
from tests.fastapi.dependencies import (
    Call,
    Session,
    apart,
    between,
    get_client,
    get_session,
    hushed,
    keep,
    mixed,
    plain,
    said,
)

pytestmark = pytest.mark.usefixtures("queues")


def test_a_worker_makes_them_once_for_each_job_in_its_thread() -> None:
    keep.dispatch(7).send()
    assert keep.job_class.field_names() == {"number"}
    drain(raises=True)
    assert said == ["opened", ("kept", 7, True, True), "committed", "closed"]
    keep.dispatch(8).send()
    drain(raises=True)
    assert said.count("opened") == 2


def test_they_are_closed_after_a_failure_and_hear_of_it() -> None:
    run(keep.job(-1)).assert_failed_with(ValueError, "negative")
    assert said[2:] == ["rolled back: negative", "closed"]


def test_async_ones_with_generators_and_classes() -> None:
    ran = run(Call(number=2))
    ran.assert_done()
    assert ran.result == "client of Session"
    middle = ("called", 2, "client of Session", True)
    assert said == ["opened", "client", middle, "client closed", "committed", "closed"]


def test_on_a_loop_that_many_jobs_share() -> None:
    assert execution.is_for_loop(Call)

    async def both() -> None:
        await asyncio.gather(*(execution.perform_on_loop(Call(number=n)) for n in (1, 2)))

    asyncio.run(both())
    assert said.count("opened") == said.count("closed") == 2


def test_an_async_failure_is_thrown_into_them() -> None:
    run(Call(number=-1)).assert_failed_with(ValueError, "negative")
    assert said[-2:] == ["rolled back: negative", "closed"]


def test_a_job_without_async_may_take_async_ones() -> None:
    run(mixed.job(3)).assert_done()
    middle = ("mixed", 3, "client of Session")
    assert said == ["opened", "client", middle, "client closed", "committed", "closed"]


def test_what_a_dependency_swallows_has_failed_all_the_same() -> None:
    run(hushed.job()).assert_failed_with(ValueError, "quiet")
    assert said == ["swallowed"]


def test_without_cache_each_is_made() -> None:
    run(apart.job()).assert_done()
    assert said[:3] == ["opened", "opened", False]


def test_the_applications_overrides_hold() -> None:
    app = FastAPI()
    use(app)

    async def instead() -> Session:
        said.append("instead")
        return Session()

    app.dependency_overrides[get_session] = instead
    run(keep.job(1)).assert_done()
    assert said == ["instead", ("kept", 1, True, False)]
    said.clear()
    app.dependency_overrides = {get_client: lambda: "none"}
    run(mixed.job(1)).assert_done()
    assert said == [("mixed", 1, "none")]

    def of_request(request: Request) -> object:
        return request

    app.dependency_overrides = {get_client: of_request}
    run(mixed.job(1)).assert_failed_with(JobDefinitionError, "takes 'request' from the request")


def gives(name: str) -> Callable[[], str]:
    return lambda: name


def test_two_applications_have_their_own_overrides() -> None:
    kept = []  # the jobs keep no application alive
    managers = []
    for name in ("shop", "blog"):
        app, queues = FastAPI(), QueueManager({"default": "sync", "root": ROOT}, Hooks())
        app.dependency_overrides[get_client] = gives(name)
        use(app, queues)
        kept.append(app)
        managers.append(queues)
    for queues in managers:
        queues.connection().push(mixed.job(1))
    assert said == [("mixed", 1, "shop"), ("mixed", 1, "blog")]


def test_an_ordinary_call_takes_what_it_is_given() -> None:
    mixed(4, client="own")
    assert said == [("mixed", 4, "own")]
    assert list(inspect.signature(mixed).parameters) == ["number"]


def test_fields_may_stand_anywhere_among_them() -> None:
    between.dispatch(5).send()
    between.dispatch(6, 7).send()
    between.dispatch(8, second=9).send()
    drain(raises=True)
    between(1, 3)
    assert [each for each in said if isinstance(each, tuple)] == [(5, 2), (6, 7), (8, 9), (1, 3)]
    with pytest.raises(TypeError, match="takes 2 positional arguments, not 3"):
        between(1, 2, 3)
    with pytest.raises(TypeError, match="multiple values"):
        between(1, first=1)


def of_request(request: Request) -> Request:
    return request


def of_header(x_tenant: Annotated[str, Header()]) -> str:
    return x_tenant


def of_query(limit: int = 10) -> int:
    return limit


def of_response(response: Response) -> Response:
    return response


def of_tasks(tasks: BackgroundTasks) -> BackgroundTasks:
    return tasks


def deep(tenant: Annotated[str, Depends(of_header)]) -> str:
    return tenant


@pytest.mark.parametrize(
    ("dependency", "name"),
    [
        (of_request, "request"),
        (of_header, "x_tenant"),
        (of_query, "limit"),
        (of_response, "response"),
        (of_tasks, "tasks"),
        (deep, "x_tenant"),
    ],
)
def test_what_reads_the_request_is_refused_at_definition(dependency: Any, name: str) -> None:
    def job(number: int, value: Any = Depends(dependency)) -> None: ...

    with pytest.raises(JobDefinitionError) as caught:
        inject(job)
    text = str(caught.value)
    assert "\n" not in text
    assert f"takes {name!r} from the request, and a job has none" in text
    assert "job: value: " in text


def test_what_cannot_be_a_dependency_is_refused() -> None:
    def unknown(session: Session) -> None: ...

    def job(value: Any = Depends(unknown)) -> None: ...

    with pytest.raises(JobDefinitionError, match="unknown cannot be used"):
        inject(job)
    with pytest.raises(JobDefinitionError, match="leave @inject out"):
        inject(lambda: None)


def test_a_job_may_have_background_jobs(queues: QueueManager) -> None:
    async def job(jobs: BackgroundJobs) -> None:
        jobs.add_task(plain, 5)

    asyncio.run(inject(job)())
    assert queues.connection().size("default") + queues.connection().size("q") == 1
