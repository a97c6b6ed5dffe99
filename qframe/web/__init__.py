"""The dashboard: all connections in one place, and the same for programs (`qframe[web]`).

`app` is an ASGI application: run it by `qframe web`, or mount it in your own. `wsgi` is the same
for Flask and Django.
"""

from __future__ import annotations

from qframe.exceptions import ConfigurationError

try:
    from qframe.web.access import Access, Visitor
    from qframe.web.app import app, wsgi
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] == "qframe":
        raise
    raise ConfigurationError(
        f"the dashboard needs {error.name}: pip install 'qframe[web]'"
    ) from None

__all__ = ["Access", "Visitor", "app", "wsgi"]
