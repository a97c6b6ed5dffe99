"""Rendering: one request for a page, and the templates."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from urllib.parse import quote, unquote, urlencode, urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from qframe.exceptions import ConfigurationError
from qframe.failed.filters import FAILED, Filter, JobList, quoted
from qframe.operations.actions.table import ACTIONS
from qframe.operations.board import Board
from qframe.operations.bulk import BulkState
from qframe.payload.text import printable
from qframe.web import values
from qframe.web.access import Grant
from qframe.web.chart import chart
from qframe.web.markup import badge, bars, dotted, labelled
from qframe.web.told import BULK_WORDS, KEYS, Told

LIMIT = 50
"""Rows of a page."""
_PATIENCE = 0.05
"""Seconds a page waits for all slow counts; an open one shows them two seconds later."""
LEAST_PATIENCE = 0.02
"""Seconds it waits for each at least, if the others took long."""
LOOK = 0.06
"""Seconds of filtering for one page; the next page continues there."""
NAVIGATION = (
    ("", (("/", "Overview", "o"),)),
    ("Jobs", (("/queues", "Queues", "q"), ("/jobs", "Jobs", "j"), ("/failed", "Failed", "f"))),
    ("Work", (("/workers", "Workers", "w"), ("/classes", "Classes", "c"))),
    ("Plans", (("/schedules", "Schedules", "s"), ("/batches", "Batches", "b"),
               ("/flows", "Flows", "l"))),
)  # fmt: skip
"""The links to all lists, in groups: path, label, and the key that follows `g`."""
THEMES = ("light", "dark")


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

    def __init__(  # noqa: PLR0913 (what a request has)
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
        theme: str = "",
    ) -> None:
        self.board = board
        self.grant = grant
        self.query = query
        self.root = root
        self.path = path
        self.nonce = nonce
        self.version = version
        self.live = live
        self.theme = theme if theme in THEMES else ""
        self._patient_until = time.monotonic() + _PATIENCE
        self.environment = board.manager.settings.web
        self.told = Told.of_query(query.get)
        self.trouble = ""
        """Why the last action was not possible."""
        self.form: dict[str, str] = {}
        """What was typed into the form of that action."""

    @property
    def patience(self) -> float:
        """Seconds that the page may still wait for a slow count."""
        return max(LEAST_PATIENCE, self._patient_until - time.monotonic())

    @property
    def here(self) -> str:
        """The page's own path and query, without what was told of an action."""
        return self._path_with([each for each in self.query.items if each[0] not in KEYS])

    @property
    def here_and_told(self) -> str:
        """The page's own path and query."""
        return self._path_with(self.query.items)

    def _path_with(self, query: Sequence[tuple[str, str]]) -> str:
        return f"{self.path}?{urlencode(query)}" if query else self.path

    @property
    def section(self) -> str:
        """The path of the list that the page belongs to."""
        path = own_path(self.query.get("back")) if self.path.startswith("/confirm/") else self.path
        return f"/{urlsplit(path).path.split('/')[1]}"

    @property
    def bulk(self) -> BulkState | None:
        """The action in the background that was started from here."""
        found = self.board.bulks.find(self.told.bulk) if self.told.bulk else None
        return None if found is None else found.state()

    def url(self, path: str, **query: object) -> str:
        """Returns the address of a page."""
        kept = {key: value for key, value in query.items() if value not in ("", None)}
        whole = f"{self.root}{path}"
        return f"{whole}?{urlencode(kept)}" if kept else whole

    def here_with(self, **changed: object) -> str:
        """Returns this page's address with other values."""
        kept = {key: value for key, value in self.query.items if key not in KEYS}
        return self.url(self.path, **{**kept, **changed})

    def allows(self, action: str) -> bool:
        """Whether the visitor may do something."""
        return self.grant.allows(action)

    def render(self, template: str, **context: object) -> str:
        return labelled(_environment().get_template(template).render(view=self, **context))

    def render_live(self, template: str, **context: object) -> str:
        """Returns the part of a page that changes."""
        found = _environment().get_template(template)
        context = {**context, "view": self}
        told = _environment().get_template("told.html").render(context)
        return labelled(told + "".join(found.blocks["live"](found.new_context(context))))

    def message(self, title: str, text: str) -> str:
        return self.render("message.html", title=title, text=text)


def filter_of(text: str, listed: JobList = FAILED) -> tuple[Filter, str]:
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
        "ago": values.ago,
        "lasting": values.lasting,
        "took": values.took,
        "number": values.number,
        "counted": values.counted,
        "sentence": values.sentence,
        "text": values.text,
        "dotted": dotted,
        "in_filter": quoted,
        "quoted": lambda value: quote(str(value), safe=""),
        "unquoted": unquote,
    }
    made.globals |= {
        "actions": ACTIONS,
        "badge": badge,
        "bars": bars,
        "bulk_words": BULK_WORDS,
        "chart": chart,
        "pages": NAVIGATION,
    }
    return made


def _harmless(value: object) -> object:
    """Returns a value for a page without characters that reverse the text, or are invisible."""
    if value is None:
        return ""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value, 10_000)
    return value
