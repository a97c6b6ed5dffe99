"""The JSON API: what the pages show, for programs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from qframe.config.values import YEAR
from qframe.exceptions import ConfigurationError
from qframe.failed.filters import ENDED, RUNNING, WAITING, Filter
from qframe.forecast.reading import LONGEST
from qframe.operations import (
    failures,
    findings,
    finished,
    forecast,
    ids,
    jobs,
    lists,
    one_job,
    waiting,
)
from qframe.operations.activity import ClassState, Trend
from qframe.operations.batches import BatchState
from qframe.operations.board import Board
from qframe.operations.bulk import BulkState
from qframe.operations.deploys import DeployState
from qframe.operations.failed_board import Failed
from qframe.operations.failures import FailedState
from qframe.operations.findings import AlertState, Overview
from qframe.operations.flows import FlowNodes, FlowState
from qframe.operations.forecast import BEHIND, HOURS, ForecastState
from qframe.operations.holds import HoldState
from qframe.operations.jobs import Jobs
from qframe.operations.one_job import OneJob
from qframe.operations.payload_reports import PayloadReport
from qframe.operations.queues import QueueState
from qframe.operations.recordings import RecordingState
from qframe.operations.retries import RetryState
from qframe.operations.schedules import ScheduleState
from qframe.operations.undo import ActState
from qframe.operations.usage import By, UsageState
from qframe.operations.waiting import Scope
from qframe.operations.why.asked import explain
from qframe.operations.why.reason import Why
from qframe.operations.workers import SupervisorState, WorkerState
from qframe.payload.text import one_line, queue_name
from qframe.web.errors import NotThere
from qframe.web.job_pages import PLACES, not_found

_Name = Annotated[str, Field(max_length=500)]
_After = Annotated[str, Field(max_length=500)]
_FilterText = Annotated[str, Field(max_length=2000)]
_Limit = Annotated[int, Field(ge=1, le=200)]

Q = TypeVar("Q", bound=BaseModel)


class Nothing(BaseModel):
    """No parameters."""

    model_config = ConfigDict(extra="forbid")


class Chosen(Nothing):
    """A filter."""

    filter: _FilterText = ""


class Hours(BaseModel):
    """So many of the last hours."""

    model_config = ConfigDict(extra="forbid")

    hours: Annotated[float, Field(gt=0, le=336)] = 1.0


class TrendOf(Hours):
    """The trend of so many hours: of all, or of one connection, queue or class."""

    connection: str = ""
    queue: str = ""
    job: str = ""


class ClassesOf(Hours):
    """The classes of so many hours that a filter chooses."""

    filter: _FilterText = ""


class OneQueue(BaseModel):
    """A queue; without a connection, of the default one."""

    model_config = ConfigDict(extra="forbid")

    queue: _Name = ""
    connection: _Name = ""


class ForecastOf(BaseModel):
    """Of so many hours ahead; one queue or all, of one connection or all.

    `behind`: how many seconds of waiting count as behind.
    """

    model_config = ConfigDict(extra="forbid")

    queue: _Name = ""
    connection: _Name = ""
    hours: Annotated[float, Field(gt=0, le=LONGEST)] = HOURS
    behind: Annotated[float, Field(ge=0, le=YEAR)] = BEHIND


class JobsOf(OneQueue):
    """A page of the jobs of a queue; with a filter, of all queues that it allows, in order."""

    place: Literal["ready", "delayed", "running", "buried"] = "ready"
    filter: _FilterText = ""
    after: _After = ""
    limit: _Limit = 50


class FinishedOf(BaseModel):
    """A page of the ended tracked jobs, of the first connection the filter allows."""

    model_config = ConfigDict(extra="forbid")

    connection: _Name = ""
    filter: _FilterText = ""
    after: _After = ""
    limit: _Limit = 50


class FailedOf(BaseModel):
    """A page of failed jobs, of the first store, or the one `place` names."""

    model_config = ConfigDict(extra="forbid")

    filter: _FilterText = ""
    after: _After = ""
    limit: _Limit = 50
    place: Annotated[int, Field(ge=0, le=999)] = 0


class Named(BaseModel):
    """One thing, by its id."""

    model_config = ConfigDict(extra="forbid")

    id: _Name


class OneOf(OneQueue):
    """A job by its uuid; its queue may be left out."""

    id: Annotated[str, Field(max_length=500, min_length=1)]


class WhyOf(BaseModel):
    """A job, a queue or a class; `kind` says which it is, if it may be several."""

    model_config = ConfigDict(extra="forbid")

    name: _Name
    kind: Literal["", "job", "queue", "class"] = ""
    connection: _Name = ""


class Queues(BaseModel):
    """All queues."""

    queues: list[QueueState]
    silent: dict[str, str]
    """Why each connection that does not answer does not."""


class FailedPage(BaseModel):
    """A page of failed jobs."""

    failed: list[FailedState]
    after: str
    looked_at: int
    places: int
    """In how many stores failed jobs are kept."""


class FailedWhole(FailedState):
    """A failed job with its error and its payload, in which secrets are stars."""

    exception: str
    payload: str
    recording: RecordingState | None


class Retries(BaseModel):
    """The watched retries of the last week, the latest first."""

    retries: list[RetryState]


class Workers(BaseModel):
    """All workers, and the supervisors that scale them."""

    workers: list[WorkerState]
    supervisors: list[SupervisorState]


class Batches(BaseModel):
    """The latest batches."""

    batches: list[BatchState]


class Flows(BaseModel):
    """The latest flows."""

    flows: list[FlowState]


class Schedules(BaseModel):
    """The schedules, the next one first."""

    schedules: list[ScheduleState]


class Holds(BaseModel):
    """The holds that are not over."""

    holds: list[HoldState]


class Acts(BaseModel):
    """What can be taken back, the latest first."""

    acts: list[ActState]


class Classes(BaseModel):
    """The state of each class."""

    classes: list[ClassState]


class Trends(BaseModel):
    """The counts step by step; null without metrics."""

    trend: Trend | None


class DeployList(BaseModel):
    """When another version began to run, latest first."""

    deploys: list[DeployState]


class Alerts(BaseModel):
    """The active alerts, the latest first."""

    alerts: list[AlertState]


class UsageOf(BaseModel):
    """The usage of so many of the last hours, by class or by tag."""

    model_config = ConfigDict(extra="forbid")

    hours: Annotated[float, Field(gt=0, le=336)] = 24.0
    by: By = "class"


class Usages(BaseModel):
    """What each class or tag has used, the longest run time first."""

    usage: list[UsageState]


class Bulks(BaseModel):
    """The bulk actions in the background."""

    bulks: list[BulkState]


class PayloadReports(BaseModel):
    """What the last checks of stored payloads found, the latest first."""

    reports: list[PayloadReport]


class Forecasts(BaseModel):
    """What comes of queues."""

    forecasts: list[ForecastState]
    silent: dict[str, str]
    """Why each connection that does not answer does not."""


class Scale(BaseModel):
    """Numbers for an autoscaler: KEDA's `metrics-api` reads `needed`."""

    needed: int
    """How many jobs are to be done now: ready and running ones."""
    ready: int
    running: int
    oldest_seconds: float


class Endpoint(NamedTuple, Generic[Q]):
    """One address: its parameters and its answer."""

    query: type[Q]
    gives: type[BaseModel]
    answer: Callable[[Board, Any], BaseModel]
    says: str


def _jobs(board: Board, asked: JobsOf) -> Jobs:
    chosen = Filter(asked.filter, RUNNING if asked.place == "running" else WAITING)
    if chosen.is_empty:
        connection = board.connection(asked.connection or board.connections()[0].name)
        within = Scope.one(connection, queue_name(asked.queue or connection.default_queue))
    else:
        there = board.named_queues()
        within = waiting.asked_of(board, chosen, asked.connection, asked.queue, there)
    return waiting.listed(board, within, PLACES[asked.place], chosen, asked.after, asked.limit)


def _finished(board: Board, asked: FinishedOf) -> finished.Finished:
    chosen = Filter(asked.filter, ENDED)
    connection = finished.connection_of(board, chosen, asked.connection)
    if connection is None:
        return finished.Finished(jobs=[], after="", looked_at=0)
    look = partial(finished.listed, connection, chosen, asked.after, asked.limit)
    return board.ask(connection, look)


def _failed(board: Board, asked: FailedOf) -> FailedPage:
    indexes = board.failed.indexes()
    chosen = Filter(asked.filter)
    if asked.place >= len(indexes):
        return FailedPage(failed=[], after="", looked_at=0, places=len(indexes))
    index = indexes[asked.place]
    look = partial(failures.listing, index, chosen, asked.after, asked.limit)
    page = board.failed.ask(index, look)
    found = [FailedState.of(each) for each in page.found]
    return FailedPage(failed=found, after=page.after, looked_at=page.looked_at, places=len(indexes))


def _one_failed(board: Board, asked: Named) -> FailedWhole:
    found = board.failed.find(asked.id)
    if found is None:
        whole = ids.whole(asked.id, one_job.failed_ids(board))
        found = None if whole is None else board.failed.find(whole)
    if found is None:
        raise NotThere(f"no failed job {one_line(asked.id, 80)}")
    record = found[1]
    return FailedWhole(
        **FailedState.of(record).model_dump(),
        exception=record.exception,
        payload=jobs.shown_payload(record.payload),
        recording=RecordingState.of(record.history.recording),
    )


def _why(board: Board, wanted: WhyOf) -> Why:
    return explain(board, wanted.name, wanted.kind, wanted.connection)


def _one_job(board: Board, asked: OneOf) -> OneJob:
    found, is_sure = one_job.find(board, asked.id, asked.connection, asked.queue)
    if found is None:
        raise NotThere(not_found(board, asked.id, is_sure=is_sure))
    return found


def _batch(board: Board, asked: Named) -> BatchState:
    found = board.find_batch(asked.id)
    if found is None:
        raise NotThere(f"no batch {one_line(asked.id, 80)}")
    return BatchState.of(found.record)


def _flow(board: Board, asked: Named) -> FlowNodes:
    found = board.find_flow(asked.id)
    if found is None:
        raise NotThere(f"no flow {one_line(asked.id, 80)}")
    return FlowNodes.of(found)


def _bulk(board: Board, asked: Named) -> BulkState:
    bulk = board.bulks.find(asked.id)
    if bulk is None:
        raise NotThere("no action with this id is running")
    return bulk.state()


def _forecast(board: Board, asked: ForecastOf) -> Forecasts:
    name = queue_name(asked.queue) if asked.queue else ""
    chosen = board.connection(asked.connection) if asked.connection else None
    found = board.from_all(
        lambda each: forecast.states(board.manager, each, name, asked.hours, asked.behind),
        lambda each: chosen in {None, each},
    )
    return Forecasts(forecasts=found, silent=board.silent)


def _scale(board: Board, asked: OneQueue) -> Scale:
    connections = board.connections()
    if not connections:
        raise ConfigurationError("no connection holds jobs")
    connection = board.connection(asked.connection or connections[0].name)
    name = queue_name(asked.queue or connection.default_queue)
    for each in board.queues():
        if (each.connection, each.queue) == (connection.name, name):
            ready, running = each.ready or 0, each.reserved or 0
            waits = each.oldest_seconds or 0.0
            return Scale(needed=ready + running, ready=ready, running=running, oldest_seconds=waits)
    if connection.name in board.silent:  # an answer would scale down what works
        connection.sizes(name)
    return Scale(needed=0, ready=0, running=0, oldest_seconds=0.0)


ENDPOINTS: dict[str, Endpoint[Any]] = {
    "/v1/overview": Endpoint(
        Nothing,
        Overview,
        lambda board, _: findings.overview(board),
        "What is wrong, and how much there is",
    ),
    "/v1/alerts": Endpoint(
        Nothing,
        Alerts,
        lambda board, _: Alerts(alerts=findings.alerts(board)),
        "Alerts that are on",
    ),
    "/v1/queues": Endpoint(
        Chosen,
        Queues,
        lambda board, asked: Queues(
            queues=lists.QUEUES.chosen(board.queues(), asked.filter), silent=board.silent
        ),
        "All queues",
    ),
    "/v1/jobs": Endpoint(JobsOf, Jobs, _jobs, "Jobs that wait, run or are buried"),
    "/v1/jobs/{id}": Endpoint(OneOf, OneJob, _one_job, "One job, wherever it is"),
    "/v1/why/{name}": Endpoint(
        WhyOf, Why, _why, "Why a job does not run, or what holds a queue or class up"
    ),
    "/v1/finished": Endpoint(
        FinishedOf, finished.Finished, _finished, "Tracked jobs that have ended"
    ),
    "/v1/failed": Endpoint(FailedOf, FailedPage, _failed, "Failed jobs, latest first"),
    "/v1/failed/{id}": Endpoint(Named, FailedWhole, _one_failed, "One failed job"),
    "/v1/causes": Endpoint(
        Nothing, Failed, lambda board, _: board.failed.summary(), "Why jobs fail"
    ),
    "/v1/retries": Endpoint(
        Nothing,
        Retries,
        lambda board, _: Retries(retries=board.retries()),
        "Retries that watch themselves, of the last week",
    ),
    "/v1/workers": Endpoint(
        Chosen,
        Workers,
        lambda board, asked: Workers(
            workers=lists.WORKERS.chosen(board.workers(), asked.filter),
            supervisors=board.supervisors(),
        ),
        "All workers",
    ),
    "/v1/batches": Endpoint(
        Chosen,
        Batches,
        lambda board, asked: Batches(
            batches=lists.BATCHES.chosen(map(BatchState.of, board.batches()), asked.filter)
        ),
        "The latest batches",
    ),
    "/v1/batches/{id}": Endpoint(Named, BatchState, _batch, "One batch"),
    "/v1/flows": Endpoint(
        Chosen,
        Flows,
        lambda board, asked: Flows(
            flows=lists.FLOWS.chosen(map(FlowState.of, board.flows()), asked.filter)
        ),
        "The latest flows",
    ),
    "/v1/flows/{id}": Endpoint(Named, FlowNodes, _flow, "One flow, with its nodes"),
    "/v1/acts": Endpoint(
        Nothing, Acts, lambda board, _: Acts(acts=board.acts()), "Acts that undo takes back"
    ),
    "/v1/holds": Endpoint(
        Nothing, Holds, lambda board, _: Holds(holds=board.holds()), "Jobs held by a filter"
    ),
    "/v1/schedules": Endpoint(
        Chosen,
        Schedules,
        lambda board, asked: Schedules(
            schedules=lists.SCHEDULES.chosen(board.schedules(), asked.filter)
        ),
        "All schedules, the next one first",
    ),
    "/v1/classes": Endpoint(
        ClassesOf,
        Classes,
        lambda board, asked: Classes(
            classes=lists.CLASSES.chosen(board.classes(asked.hours), asked.filter)
        ),
        "What became of each class of jobs",
    ),
    "/v1/tags": Endpoint(
        Hours,
        Classes,
        lambda board, asked: Classes(classes=board.tags(asked.hours)),
        "What became of the jobs of each tag that is counted, named as `job`",
    ),
    "/v1/usage": Endpoint(
        UsageOf,
        Usages,
        lambda board, asked: Usages(usage=board.usage(asked.hours, asked.by)),
        "Which classes or tags use the workers",
    ),
    "/v1/trend": Endpoint(
        TrendOf,
        Trends,
        lambda board, asked: Trends(
            trend=board.trend(asked.hours, asked.connection, asked.queue, asked.job)
        ),
        "Step by step",
    ),
    "/v1/deploys": Endpoint(
        Hours,
        DeployList,
        lambda board, asked: DeployList(deploys=board.deploys(asked.hours)),
        "Deploys that were marked",
    ),
    "/v1/payload-checks": Endpoint(
        Nothing,
        PayloadReports,
        lambda board, _: PayloadReports(reports=board.payload_reports()),
        "What the last checks of stored payloads found; the action check-payloads makes one",
    ),
    "/v1/forecast": Endpoint(
        ForecastOf, Forecasts, _forecast, "Whether queues will be behind, when and why"
    ),
    "/v1/bulks": Endpoint(
        Nothing, Bulks, lambda board, _: Bulks(bulks=board.bulks.states()), "What is under way"
    ),
    "/v1/bulks/{id}": Endpoint(Named, BulkState, _bulk, "One thing that is under way"),
    "/scale": Endpoint(OneQueue, Scale, _scale, "What an autoscaler asks for"),
}
"""All endpoints, by the path below `/api`."""
