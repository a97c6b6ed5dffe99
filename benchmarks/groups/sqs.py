"""How many calls a job takes on SQS, beside Celery's."""

from __future__ import annotations

import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from benchmarks import environments, report
from benchmarks.moto_server import CREDENTIALS, REGION, MotoServer
from benchmarks.peers.sides import QUIET_CELERY
from benchmarks.places import NotHereError, Place, Side, our_side, producing
from benchmarks.plan import Plan
from benchmarks.rows import Row, alternated, each_job, noted, per_second

TITLE = "SQS, calls per no-op job; all sides on moto in this process"

_SOLO, _TEN = "one at a time", "ten at once"
_OPTIONS = {_SOLO: (), _TEN: ("--concurrency", "10")}
_CELERY = {_SOLO: ("-c", "1", "-P", "solo"), _TEN: ("-c", "10", "-P", "threads")}
_MOST = 300
"""Jobs of a round: moto answers a few hundred requests a second."""
_ROUNDS = 1
"""Calls are the same in each."""


def facts() -> dict[str, str]:
    """Name the versions compared."""
    pinned = environments.pinned("celery_sqs")
    return {
        **report.installed("botocore", "moto"),
        **{name: pinned[name] for name in ("celery", "kombu")},
    }


def rows(plan: Plan) -> list[Row]:
    """Measure everything, the sides in turn."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with MotoServer() as server:
        sides = [_ours(server)]
        missing = "left out" if plan.alone else ""
        if not plan.alone:
            try:
                sides.append(_celery(server))
            except NotHereError as error:
                missing = f"not installed: {error}"
        found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for side in alternated(sides, min(plan.rounds, _ROUNDS)):
            for measure, value in _measured(server, side, min(plan.jobs, _MOST)):
                found[measure][side.name].append(value)
    rows = []
    for measure, values in found.items():
        shown = per_second if "a second" in measure else each_job
        row = noted(measure, values["qframe"], shown, peer=values["Celery"])
        rows.append(row if values["Celery"] else replace(row, peer=missing))
    return rows


def _ours(server: MotoServer) -> Side:
    settings = f'create = true\nregion = "{REGION}"\nendpoint = "http://{server.address}"\n'
    return our_side("sqs", settings, environment=CREDENTIALS)


def _celery(server: MotoServer) -> Side:
    keys = f"{CREDENTIALS['AWS_ACCESS_KEY_ID']}:{CREDENTIALS['AWS_SECRET_ACCESS_KEY']}"
    return Side(
        "Celery",
        producing("benchmarks.peers.celery"),
        tuple(word.replace("APP", "benchmarks.peers.celery") for word in QUIET_CELERY),
        environment={**CREDENTIALS, "BENCH_SQS": f"sqs://{keys}@{server.address}"},
        programs=environments.programs("celery_sqs"),
        stopped=False,
    )


def _measured(server: MotoServer, side: Side, jobs: int) -> Iterator[tuple[str, float]]:
    """Dispatch and drain, and give what each took for a job; the first jobs warm up."""
    for kind in (_SOLO, _TEN):
        with _place(server, side) as place:
            place.produce("many", 1)
            server.counted()
            rate = place.produce("many", jobs)
            dispatched = server.counted() / jobs
            options = _OPTIONS[kind] if side.name == "qframe" else _CELERY[kind]
            drained = place.drain(jobs + 1, *options)
            if kind == _SOLO:
                yield "dispatch, calls", dispatched
                yield "dispatch, a second", rate
            yield f"drain, {kind}, calls", server.counted() / jobs
            yield f"drain, {kind}, a second", drained.rate


@contextlib.contextmanager
def _place(server: MotoServer, side: Side) -> Iterator[Place]:
    server.empty()
    with Place(side) as place:
        yield place
