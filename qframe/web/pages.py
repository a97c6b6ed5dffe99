"""Pages: what each shows, and its template."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlencode, urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from qframe.contracts.backend import Place
from qframe.contracts.failed import FailedJob
from qframe.exceptions import BackendUnavailable, ConfigurationError, QframeError
from qframe.failed.filters import ENDED, FAILED, NAMES, RUNNING, WAITING, Filter, JobList, quoted
from qframe.operations import failures, findings, finished, jobs, lists, one_job, running, waiting
from qframe.operations.actions import ACTIONS, Wanted, chosen_by, running_of, waiting_of
from qframe.operations.batches import BatchState
from qframe.operations.board import Board
from qframe.operations.failures import FailedState, Listing
from qframe.operations.queues import QueueState
from qframe.operations.reading import NotYetError
from qframe.operations.schedules import MOST
from qframe.payload.text import one_line, printable
from qframe.payload.timing import lasting
from qframe.web.access import Grant
from qframe.web.markup import bars, labelled

T = TypeVar("T")

_LIMIT = 50
_PATIENCE = 0.1
"""Seconds a page waits for slow counts; an open one shows them two seconds later."""
_LOOK = 0.1
"""Seconds of filtering for one page; the next page goes on there."""
_LEAST = 0.03
"""Seconds of filtering at least, if the other readings of the page took long."""
_COUNTS = 2.0
"""Seconds for counting what an action affects, before the confirmation."""
_MOST_BATCHES = 500
PLACES = {
    "ready": Place.READY,
    "delayed": Place.DELAYED,
    "running": Place.RUNNING,
    "buried": Place.BURIED,
}
_FINISHED = "finished"
_OF_JOBS = {"retry", "forget", "cancel", "run-now"}
_LISTS = {"running": RUNNING, _FINISHED: ENDED}


class NotThere(QframeError):
    """The requested thing does not exist."""


class Query:
    """The query string of a page's address, or a form."""

    def __init__(self, items: Sequence[tuple[str, str]]) -> None:
        self.items = [(key, value) for key, value in items if "\0" not in value]

    def get(self, key: str, default: str = "") -> str:
        """Returns the first value of a key."""
        return next((value for name, value in self.items if name == key), default)

    def number(self, key: str, default: float, most: float) -> float:
        """Returns a number from 0 to `most`."""
        try:
            value = float(self.get(key))
        except ValueError:
            return default
        return min(value, most) if value > 0 else default


class PageView:
    """One request for a page: the board, the visitor, and how it is shown."""

    def __init__(
        self,
        board: Board,
        grant: Grant,
        query: Query,
        *,
        root: str,
        path: str,
        nonce: str,
        version: str,
        live: bool,
    ) -> None:
        self.board = board
        self.grant = grant
        self.query = query
        self.root = root
        self.path = path
        self.nonce = nonce
        self.version = version
        self.live = live

    @property
    def here(self) -> str:
        """The page's own path and query, without the last message."""
        kept = [each for each in self.query.items if each[0] != "said"]
        return f"{self.path}?{urlencode(kept)}" if kept else self.path

    def url(self, path: str, **query: object) -> str:
        """Returns the address of a page."""
        kept = {key: value for key, value in query.items() if value not in ("", None)}
        whole = f"{self.root}{path}"
        return f"{whole}?{urlencode(kept)}" if kept else whole

    def here_with(self, **changed: object) -> str:
        """Returns this page's address with other values."""
        kept = {key: value for key, value in self.query.items if key != "said"}
        return self.url(self.path, **{**kept, **changed})

    def allows(self, action: str) -> bool:
        """Whether the visitor may do something."""
        return self.grant.allows(action)

    def render(self, template: str, **context: object) -> str:
        return labelled(_environment().get_template(template).render(view=self, **context))

    def message(self, title: str, text: str) -> str:
        return self.render("message.html", title=title, text=text)


Make = Callable[[PageView, Mapping[str, str]], dict[str, Any]]


class WebPage(NamedTuple):
    """One page: its template, and what returns the template's values."""

    template: str
    make: Make

    def rendered(self, view: PageView, params: Mapping[str, str]) -> tuple[int, str]:
        """Returns its status and its text."""
        try:
            return 200, view.render(self.template, **self.make(view, params))
        except NotThere as error:
            return 404, view.message("It is not there", str(error))
        except BackendUnavailable as error:
            return 503, view.message("The backend does not answer", str(error))
        except QframeError as error:
            return 422, view.message("That cannot be shown", str(error))

    def live(self, view: PageView, params: Mapping[str, str]) -> str:
        """Returns the part that changes; "" if it cannot be read now."""
        try:
            context = {**self.make(view, params), "view": view}
        except QframeError:
            return ""
        template = _environment().get_template(self.template)
        return labelled("".join(template.blocks["live"](template.new_context(context))))


# -- the pages ------------------------------------------------------------------------------------


def _overview(view: PageView, _params: Mapping[str, str]) -> dict[str, Any]:
    seen = findings.overview(view.board, _PATIENCE)
    whole = seen.trend.step_seconds * len(seen.trend.started) if seen.trend else 1
    return {
        "seen": seen,
        "waits": [] if seen.ready is None else _waits(view.board.queues()),
        "marks": [1 - each.seconds_ago / whole for each in seen.deploys],
    }


def _waits(states: Sequence[QueueState]) -> list[QueueState]:
    """Returns the queues that hold anything, those with the longest wait first."""
    busy = [each for each in states if each.ready or each.reserved or each.delayed]
    return sorted(busy, key=lambda each: -(each.oldest_seconds or 0.0))[:10]


def _queues(view: PageView, _params: Mapping[str, str]) -> dict[str, Any]:
    there, is_counted = _counted(view.board)
    return {
        **_listed(view, lists.QUEUES, there, "queues"),
        "silent": view.board.silent,
        "is_counted": is_counted,
    }


def _counted(board: Board) -> tuple[list[QueueState], bool]:
    """Returns the queues with their sizes; only their names if counting takes too long."""
    try:
        return board.queues(_PATIENCE), True
    except NotYetError:
        return board.named_queues(), False


def _listed(view: PageView, kind: lists.RowKind[T], rows: Sequence[T], name: str) -> dict[str, Any]:
    """Returns the rows that the page's filter chooses; none if the filter is wrong."""
    text = view.query.get("filter")[:2000]
    found: dict[str, Any] = {"filter": text, "trouble": "", name: []}
    try:
        found[name] = kind.chosen(rows, text)
    except ConfigurationError as error:
        found["trouble"] = str(error)
    return found


def _jobs(view: PageView, _params: Mapping[str, str]) -> dict[str, Any]:
    began, query = time.monotonic(), view.query
    there, is_counted = _counted(view.board)
    text = query.get("filter")
    place = query.get("place", "ready")
    places = [*PLACES, _FINISHED]
    if place not in places:
        raise ConfigurationError(f"{one_line(place, 40)!r} is none of {', '.join(places)}")
    chosen, trouble = _filter(text, _LISTS.get(place, WAITING))
    found: dict[str, Any] = {
        "queues": _allowed(there, chosen),
        "is_counted": is_counted,
        "place": place,
        "places": places,
        "filter": text,
        "trouble": trouble,
        "running": None,
        "finished": None,
        "listed": None,
        "keepers": [],
        "keeper": None,
        "queue": None,
        "within": None,
    }
    if place == _FINISHED:
        found["keepers"] = finished.keepers(view.board, chosen)
        name = query.get("connection")
        found["keeper"] = finished.connection_of(view.board, chosen, name)
    elif place != Place.RUNNING.value:
        within = _within(view, there, chosen, place)
        found["within"] = within
        if within is not None and len(within.queues) == 1:
            found["queue"] = within.queues[0]
    if trouble:
        return found
    seconds = max(_LEAST, _LOOK - (time.monotonic() - began))
    look = (chosen, query.get("after"), _LIMIT, seconds)
    if place == Place.RUNNING.value:
        found["running"] = running.listed(view.board, chosen, seconds)
    elif (keeper := found["keeper"]) is not None:
        found["finished"] = view.board.ask(keeper, partial(finished.listed, keeper, *look))
    elif found["within"] is not None:
        found["listed"] = waiting.listed(view.board, found["within"], PLACES[place], *look)
    return found


def _allowed(there: Sequence[QueueState], chosen: Filter) -> list[QueueState]:
    """Returns the queues in which a filter allows jobs."""
    return [
        each
        for each in there
        if chosen.allows("connection", each.connection) and chosen.allows("queue", each.queue)
    ]


def _within(
    view: PageView, there: Sequence[QueueState], chosen: Filter, place: str
) -> waiting.Scope | None:
    """Returns the queues to show: all that a filter allows, or one; None if there is none.

    Without a filter it is the requested one, or the first that has such jobs.
    """
    name, connection = view.query.get("queue"), view.query.get("connection")
    if not chosen.is_empty:
        return waiting.asked_of(view.board, chosen, connection, name, there)
    fits = [
        each for each in there if connection in {"", each.connection} and name in {"", each.queue}
    ]
    if name and not fits:
        known = connection or view.board.connections()[0].name
        return waiting.Scope.one(view.board.connection(known), name)
    first = next((each for each in fits if not name and getattr(each, place)), None)
    shown = first or next(iter(fits), None)
    if shown is None:
        return None
    return waiting.Scope.one(view.board.connection(shown.connection), shown.queue)


def _job(view: PageView, params: Mapping[str, str]) -> dict[str, Any]:
    uuid, query = params["uuid"], view.query
    job, is_sure = one_job.find(view.board, uuid, query.get("connection"), query.get("queue"))
    if job is None:
        raise NotThere(not_found(view.board, uuid, is_sure=is_sure))
    return {"job": job, "status": _facts(job.status.model_dump()) if job.status else None}


def not_found(board: Board, uuid: str, *, is_sure: bool) -> str:
    """Returns the message that a job does not exist, or where it may be."""
    told = f"no job {one_line(uuid, 80)} waits, runs, has failed or is tracked"
    if silent := sorted(board.silent):
        return f"{told}; but {', '.join(silent)} did not answer, and it may be there"
    if not is_sure:
        told += "; but more jobs wait than could be looked at, and its uuid does not tell where"
    return f"{told}; it may be done"


def _facts(status: dict[str, Any]) -> dict[str, str]:
    """Returns the fields of a status as texts, without those the page shows otherwise."""
    told: dict[str, str] = {}
    for key, value in status.items():
        if value in (None, "", [], 0) or key in {"progress", "message", "log"}:
            continue
        if key.endswith("_at"):
            told[key.removesuffix("_at")] = f"{value} UTC"
        else:
            told[key] = one_line(str(value), 1000)
    return told


def _failed(view: PageView, _params: Mapping[str, str]) -> dict[str, Any]:
    text = view.query.get("filter")
    chosen, trouble = _filter(text)
    found: dict[str, Any] = {
        "failed": view.board.failed.summary(),
        "filter": text,
        "trouble": trouble,
        "listing": None,
        "cause": None,
        "names": NAMES,
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
        found["records"] = [FailedState.of(each) for each in listing.found]
    return found


def _listing(board: Board, chosen: Filter, after: str) -> Listing:
    """Lists failed jobs, store after store; `after` names the store as well."""
    number, _, uuid = after.partition(".")
    indexes = board.failed.indexes()
    at = int(number) if number.isdecimal() and len(number) < 4 else 0  # noqa: PLR2004 (so many places)
    found, looked_at = list[FailedJob](), 0
    ends = time.monotonic() + _LOOK
    while at < len(indexes):
        left = ends - time.monotonic()
        with suppress(BackendUnavailable):  # the page names the connection
            index, most = indexes[at], _LIMIT - len(found)
            look = partial(failures.listing, index, chosen, uuid, most, left)
            page = board.failed.ask(index, look)
            found += page.found
            looked_at += page.looked_at
            if page.after:
                return Listing(found, f"{at}.{page.after}", looked_at)
        at, uuid = at + 1, ""
        if len(found) >= _LIMIT or looked_at >= failures.LOOKED_AT:
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
    failed = found.kept.failures(found.record.id, 100) if found.record.failed else []
    return {"batch": BatchState.of(found.record), "failed": [each for each in failed if each]}


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
    known = view.board.classes(hours)
    return {
        **_listed(view, lists.CLASSES, known, "classes"),
        "hours": hours,
        "errors": errors,
        "deploys": view.board.deploys(hours),
        "tags": view.board.tags(hours),
    }


def _bulk(view: PageView, params: Mapping[str, str]) -> dict[str, Any]:
    bulk = view.board.bulks.find(params["id"])
    if bulk is None:
        raise NotThere("nothing of that id is under way, or it was too long ago")
    return {"bulk": bulk.state()}


PAGES: dict[str, WebPage] = {
    "/": WebPage("overview.html", _overview),
    "/queues": WebPage("queues.html", _queues),
    "/jobs": WebPage("jobs.html", _jobs),
    "/jobs/{uuid}": WebPage("job.html", _job),
    "/failed": WebPage("failed.html", _failed),
    "/failed/{uuid}": WebPage("job.html", _job),
    "/workers": WebPage("workers.html", _workers),
    "/batches": WebPage("batches.html", _batches),
    "/batches/{id}": WebPage("batch.html", _batch),
    "/schedules": WebPage("schedules.html", _schedules),
    "/classes": WebPage("classes.html", _classes),
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


def _filter(text: str, listed: JobList = FAILED) -> tuple[Filter, str]:
    """Reads a filter; a wrong one chooses all, and its error is returned."""
    try:
        return Filter(text[:2000], listed), ""
    except ConfigurationError as error:
        return Filter(""), str(error)


def own_path(back: str) -> str:
    """Returns a path of the page that a link may lead to; `/` for all else."""
    try:
        parts = urlsplit(back)
    except ValueError:  # such as `//[`
        return "/"
    is_own = back.startswith("/") and not back.startswith("//") and "\\" not in back
    return back if is_own and not parts.netloc and back.isprintable() else "/"


# -- asking ---------------------------------------------------------------------------------------


def question(view: PageView, name: str, wanted: Wanted) -> str:
    """Returns the page that asks for confirmation of an action."""
    try:
        count = _count(view.board, name, wanted)
    except QframeError as error:
        return view.message("That cannot be", str(error))
    fields = [
        (key, value)
        for key, value in wanted.model_dump(exclude={"uuids"}).items()
        if value not in ("", None) or (key == "filter" and value is not None)
    ]
    fields += [("uuids", uuid) for uuid in wanted.uuids]
    return view.render(
        "confirm.html",
        name=name,
        action=ACTIONS[name],
        count=count,
        fields=fields,
        wanted=wanted,
        back=own_path(view.query.get("back", "/")),
    )


def _count(board: Board, name: str, wanted: Wanted) -> str:
    if name in {"clear", "kick"}:
        sizes = board.connection(wanted.connection).sizes(wanted.queue or None)
        return f"{sizes.buried if name == 'kick' else sizes.ready + sizes.delayed:,}"
    if wanted.filter is None and not wanted.cause:
        if name in _OF_JOBS and not wanted.uuids:
            raise ConfigurationError("no job is selected")
        return f"{len(wanted.uuids):,}" if wanted.uuids else ""
    if name == "cancel":
        return _count_waiting(board, wanted)
    return _count_failed(board, wanted)


def _count_waiting(board: Board, wanted: Wanted) -> str:
    place = PLACES.get(wanted.place, Place.READY)
    if place is Place.RUNNING:
        return f"{len(running_of(board, wanted)):,}"
    chosen, within = waiting_of(board, wanted)
    listed = waiting.listed(board, within, place, chosen, "", jobs.LOOKED_AT, _COUNTS)
    return _capped(len(listed.jobs), listed.looked_at, more=bool(listed.after))


def _count_failed(board: Board, wanted: Wanted) -> str:
    chosen = chosen_by(wanted)
    if chosen.is_empty:
        return f"{board.failed.summary().total:,}"
    if wanted.cause and not wanted.filter:
        kept = (each for each in board.failed.summary().causes if each.cause == wanted.cause)
        return f"{sum(each.count for each in kept):,}"
    found: list[Listing] = []
    for each in board.failed.indexes():
        with suppress(BackendUnavailable):
            look = partial(failures.listing, each, chosen, "", failures.LOOKED_AT)
            found.append(board.failed.ask(each, look))
    return _capped(
        sum(len(each.found) for each in found),
        sum(each.looked_at for each in found),
        more=any(each.after for each in found),
    )


def _capped(count: int, looked_at: int, *, more: bool) -> str:
    return f"{count:,} of the first {looked_at:,}, and more" if more else f"{count:,}"


# -- how it is shown ------------------------------------------------------------------------------


def prepare() -> None:
    """Compiles all templates, or the first visitor would wait for it."""
    for name in _environment().list_templates(extensions=["html"]):
        _environment().get_template(name)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("qframe.web"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "lasting": _lasting,
        "took": _took,
        "number": _number,
        "text": _text,
        "in_filter": quoted,
        "quoted": lambda value: quote(str(value), safe=""),
    }
    made.globals |= {"bars": bars, "actions": ACTIONS}
    return made


def _harmless(value: object) -> object:
    """Returns a value for a page without characters that reverse the text, or are invisible."""
    if value is None:
        return ""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value, 10_000)
    return value


def _text(value: str) -> Markup:
    return Markup("\n").join(escape(printable(each, 10_000)) for each in value.splitlines())


def _lasting(seconds: float | None) -> str:
    return "" if seconds is None else lasting(seconds)


def _took(seconds: float | None) -> str:
    """Formats a time that may be short."""
    if seconds is None:
        return ""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 60 else lasting(seconds)  # noqa: PLR2004 (a minute)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    is_whole = value >= 100 or value == int(value)  # noqa: PLR2004 (digits enough)
    return f"{value:,.0f}" if is_whole else f"{value:,.1f}"
