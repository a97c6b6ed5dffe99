"""Pages: what each shows, and its template."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

from qframe.contracts.failed import FailedJob
from qframe.exceptions import BackendUnavailable, ConfigurationError, QframeError
from qframe.failed.filters import NAMES, Filter
from qframe.operations import failures, findings, lists
from qframe.operations.actions.of_payloads import AT_MOST
from qframe.operations.activity import Trend
from qframe.operations.batches import BatchState
from qframe.operations.board import Board
from qframe.operations.failures import FailedState, Listing
from qframe.operations.flows import FlowNodes, FlowState, drawing
from qframe.operations.forecast import HOURS, ForecastState
from qframe.operations.queues import RATES_OVER, QueueState
from qframe.operations.reading import NotYetError
from qframe.operations.retries import RetryState
from qframe.operations.usage import By
from qframe.payload.text import one_line
from qframe.payload.timing import iso
from qframe.schedules.known import MOST
from qframe.web import job_pages, why_page
from qframe.web.class_page import one_class
from qframe.web.errors import NotThere
from qframe.web.job_pages import counted
from qframe.web.periods import charted
from qframe.web.rendering import LIMIT, LOOK, PageView, filter_of

_MOST_BATCHES = 500
_MOST_FAILED = 20
"""So many failed jobs of a batch are shown."""
_USED_BY: tuple[By, ...] = ("class", "tag")
_RECENT = 86400.0
_RETRIES = 20
"""So many watched retries are shown, which ended within so many seconds."""
_ON_FAILURE = {
    "block": "what follows waits",
    "continue": "what follows runs",
    "cancel": "what follows is cancelled",
}

T = TypeVar("T")

Make = Callable[[PageView, Mapping[str, str]], dict[str, Any]]


class WebPage(NamedTuple):
    """One page: its template, and what returns the template's values."""

    template: str
    make: Make

    def render(self, view: PageView, params: Mapping[str, str]) -> str:
        return view.render(self.template, **self.make(view, params))

    def live(self, view: PageView, params: Mapping[str, str]) -> str:
        """Returns the part that changes; "" if it cannot be read now."""
        try:
            return view.render_live(self.template, **self.make(view, params))
        except QframeError:
            return ""


_BUSIEST = 10
"""So many queues and causes are on the overview."""


def _overview(view: PageView, _params: Mapping[str, str]) -> dict[str, Any]:
    seen = findings.overview(view.board, view.patience)
    every = view.board.failed.summary().causes
    causes = [each for each in every if not each.silenced and any(each.last_24_h)]
    causes.sort(key=lambda each: -sum(each.last_24_h))
    there = [] if findings.HOW_MANY in seen.pending else view.board.queues()
    chart = charted(view)
    return {
        "seen": seen,
        "headline": findings.headline(seen),
        "waits": _waits(there)[:_BUSIEST],
        "causes": causes[:_BUSIEST],
        "per_minute": _per_minute(seen.trend),
        "oldest": max((each.oldest_seconds or 0.0 for each in there), default=0.0),
        "is_fresh": not chart["deploys"] and _is_fresh(view.board, seen),
        **chart,
    }


def _is_fresh(board: Board, seen: findings.Overview) -> bool:
    """Whether there is no job, nobody works, and nothing was ever counted."""
    there = seen.ready or seen.running or seen.delayed or seen.failed or seen.workers
    return not (there or seen.pending or board.silent or board.totals())


def _per_minute(trend: Trend | None) -> float | None:
    """Returns how many jobs ended a minute, of the last whole minutes."""
    if trend is None:
        return None
    last = slice(-1 - RATES_OVER, -1)
    return sum(trend.done[last] + trend.failed[last]) / RATES_OVER


def _waits(states: Sequence[QueueState]) -> list[QueueState]:
    """Returns the queues that hold anything, those with the longest wait first."""
    busy = [each for each in states if each.ready or each.reserved or each.delayed]
    return sorted(busy, key=lambda each: -(each.oldest_seconds or 0.0))


def _queues(view: PageView, _params: Mapping[str, str]) -> dict[str, Any]:
    there, is_counted = counted(view)
    return {
        **_listed(view, lists.QUEUES, there, "queues"),
        "silent": view.board.silent,
        "is_counted": is_counted,
        "coming": [each for each in _coming(view) if each.behind_at],
        "hours": HOURS,
        "holds": view.board.holds(),
        "acts": [each for each in view.board.acts() if each.jobs],
        "connections": [each.name for each in view.board.connections()],
    }


def _coming(view: PageView) -> list[ForecastState]:
    try:
        return view.board.forecasts(view.patience)
    except NotYetError:
        return []


def _listed(view: PageView, kind: lists.RowKind[T], rows: Sequence[T], name: str) -> dict[str, Any]:
    """Returns the rows that the page's filter chooses; none if the filter is wrong."""
    text = view.query.get("filter")[:2000]
    found: dict[str, Any] = {"filter": text, "trouble": "", name: []}
    try:
        found[name] = kind.chosen(rows, text)
    except ConfigurationError as error:
        found["trouble"] = str(error)
    return found


def _failed(view: PageView, _params: Mapping[str, str]) -> dict[str, Any]:
    text = view.query.get("filter")
    chosen, trouble = filter_of(text)
    found: dict[str, Any] = {
        "failed": view.board.failed.summary(),
        "filter": text,
        "trouble": trouble,
        "listing": None,
        "total": None,
        "cause": None,
        "names": NAMES,
        "retries": _recent(view.board.retries()),
        "silent": view.board.silent,
    }
    if text or view.query.get("by") == "time":
        found["cause"] = next(
            (each for each in found["failed"].causes if each.cause == chosen.cause), None
        )
        listing = Listing([], "", 0)
        if not trouble:
            listing = _listing(view.board, chosen, view.query.get("after"))
        found["listing"] = listing
        found["total"] = _total(view, chosen, listing, found["failed"].total)
        found["records"] = [FailedState.of(each) for each in listing.found]
    return found


def _recent(known: Sequence[RetryState]) -> list[RetryState]:
    """Returns the retries that go on, or have ended within a day."""
    since = iso(time.time() - _RECENT)
    return [each for each in known if each.ended_at is None or each.ended_at > since][:_RETRIES]


def _total(view: PageView, chosen: Filter, listing: Listing, every: int) -> int | None:
    """Returns how many failed jobs a filter chooses; None if that is not known."""
    if chosen.is_empty:
        return every
    is_whole = not (listing.after or view.query.get("after"))
    return len(listing.found) if is_whole else None


def _listing(board: Board, chosen: Filter, after: str) -> Listing:
    """Lists failed jobs, store after store; `after` names the store as well."""
    number, _, uuid = after.partition(".")
    indexes = board.failed.indexes()
    at = int(number) if number.isdecimal() and len(number) < 4 else 0  # noqa: PLR2004 (so many places)
    found, looked_at = list[FailedJob](), 0
    ends = time.monotonic() + LOOK
    while at < len(indexes):
        left = ends - time.monotonic()
        with suppress(BackendUnavailable):  # the page names the connection
            index, most = indexes[at], LIMIT - len(found)
            look = partial(failures.listing, index, chosen, uuid, most, left)
            page = board.failed.ask(index, look)
            found += page.found
            looked_at += page.looked_at
            if page.after:
                return Listing(found, f"{at}.{page.after}", looked_at)
        at, uuid = at + 1, ""
        if len(found) >= LIMIT or looked_at >= failures.LOOKED_AT:
            break
    return Listing(found, f"{at}." if at < len(indexes) else "", looked_at)


def _workers(view: PageView, _params: Mapping[str, str]) -> dict[str, Any]:
    listed = _listed(view, lists.WORKERS, view.board.workers(), "workers")
    return {**listed, "supervisors": view.board.supervisors()}


def _batches(view: PageView, _params: Mapping[str, str]) -> dict[str, Any]:
    text = view.query.get("filter")
    known = [BatchState.of(each) for each in view.board.batches(_MOST_BATCHES if text else 200)]
    return _listed(view, lists.BATCHES, known, "batches")


def _batch(view: PageView, params: Mapping[str, str]) -> dict[str, Any]:
    found = view.board.find_batch(params["id"])
    if found is None:
        raise NotThere(f"no batch {one_line(params['id'], 80)}")
    uuids = found.kept.failures(found.record.id, _MOST_FAILED) if found.record.failed else []
    kept = [view.board.failed.find(each) for each in uuids if each]
    failed = [FailedState.of(each[1]) for each in kept if each is not None]
    return {"batch": BatchState.of(found.record), "failed": failed}


def _flows(view: PageView, _params: Mapping[str, str]) -> dict[str, Any]:
    text = view.query.get("filter")
    known = [FlowState.of(each) for each in view.board.flows(_MOST_BATCHES if text else 200)]
    return _listed(view, lists.FLOWS, known, "flows")


def _flow(view: PageView, params: Mapping[str, str]) -> dict[str, Any]:
    found = view.board.find_flow(params["id"])
    if found is None:
        raise NotThere(f"no flow {one_line(params['id'], 80)}")
    shown = FlowNodes.of(found)
    drawn = drawing(shown.nodes) if shown.flow.total == len(shown.nodes) else None
    names = {each.number: each.name for each in shown.nodes}
    return {
        "flow": shown.flow,
        "nodes": shown.nodes,
        "names": names,
        "drawing": drawn,
        "on_failure": _ON_FAILURE,
    }


def _schedules(view: PageView, _params: Mapping[str, str]) -> dict[str, Any]:
    connections = [each.name for each in view.board.connections()]
    known = view.board.schedules()
    found = _listed(view, lists.SCHEDULES, known, "schedules")
    return {**found, "is_capped": len(known) >= MOST, "most": MOST, "connections": connections}


def _classes(view: PageView, _params: Mapping[str, str]) -> dict[str, Any]:
    hours = view.query.number("hours", 1.0, 14 * 24.0)
    errors: dict[str, str] = {}
    for cause in sorted(view.board.failed.summary().causes, key=lambda each: each.last_at):
        errors[cause.job] = cause.error
    try:
        known, tags, is_late = view.board.classes(hours, patience=view.patience), [], False
        tags = view.board.tags(hours, view.patience)
        usage = {by: view.board.usage(hours, by, view.patience) for by in _USED_BY}
    except NotYetError:
        known, tags, usage, is_late = [], [], {}, True
    return {
        **_listed(view, lists.CLASSES, known, "classes"),
        "hours": hours,
        "is_late": is_late,
        "errors": errors,
        "deploys": view.board.deploys(hours),
        "tags": tags,
        "usage": usage,
    }


def _payloads(view: PageView, _params: Mapping[str, str]) -> dict[str, Any]:
    return {
        "reports": view.board.payload_reports(),
        "deployed_at": view.board.deployed_at(),
        "at_most": AT_MOST,
        "silent": view.board.silent,
    }


def _bulk(view: PageView, params: Mapping[str, str]) -> dict[str, Any]:
    bulk = view.board.bulks.find(params["id"])
    if bulk is None:
        raise NotThere("no action with this id is running, or it ended too long ago")
    return {"bulk": bulk.state()}


PAGES: dict[str, WebPage] = {
    "/": WebPage("overview.html", _overview),
    "/queues": WebPage("queues.html", _queues),
    "/jobs": WebPage("jobs.html", job_pages.jobs),
    "/jobs/{uuid}": WebPage("job.html", job_pages.job),
    "/why/{name}": WebPage("why.html", why_page.page),
    "/failed": WebPage("failed.html", _failed),
    "/failed/{uuid}": WebPage("job.html", job_pages.job),
    "/workers": WebPage("workers.html", _workers),
    "/batches": WebPage("batches.html", _batches),
    "/batches/{id}": WebPage("batch.html", _batch),
    "/flows": WebPage("flows.html", _flows),
    "/flows/{id}": WebPage("flow.html", _flow),
    "/schedules": WebPage("schedules.html", _schedules),
    "/classes": WebPage("classes.html", _classes),
    "/classes/{job}": WebPage("class.html", one_class),
    "/payloads": WebPage("payloads.html", _payloads),
    "/bulk/{id}": WebPage("bulk.html", _bulk),
}


def find(path: str) -> tuple[WebPage, dict[str, str]] | None:
    """Returns the page of a link's path, and the values of the path's names."""
    for pattern, page in PAGES.items():
        # A name that other programs give may have a slash in it.
        found = re.fullmatch(re.sub(r"\{(\w+)\}", r"(?P<\1>.+)", pattern), unquote(path))
        if found:
            return page, found.groupdict()
    return None


def route_of(path: str) -> str:
    """Returns the path of a page, or of the API, for a router: a name may have a slash."""
    return re.sub(r"\{(\w+)\}", r"{\1:path}", path)
