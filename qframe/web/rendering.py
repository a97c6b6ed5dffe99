"""Rendering: one request for a page, the templates, and how values are shown."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from urllib.parse import quote, urlencode, urlsplit

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from qframe.exceptions import ConfigurationError
from qframe.failed.filters import FAILED, Filter, JobList, quoted
from qframe.operations.actions import ACTIONS
from qframe.operations.board import Board
from qframe.payload.text import printable
from qframe.payload.timing import lasting
from qframe.web.access import Grant
from qframe.web.markup import bars, labelled

LIMIT = 50
"""Rows of a page."""
PATIENCE = 0.1
"""Seconds a page waits for slow counts; an open one shows them two seconds later."""
LOOK = 0.1
"""Seconds of filtering for one page; the next page continues there."""


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

    def render_live(self, template: str, **context: object) -> str:
        """Returns the part of a page that changes."""
        found = _environment().get_template(template)
        values = found.new_context({**context, "view": self})
        return labelled("".join(found.blocks["live"](values)))

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
