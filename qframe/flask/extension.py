"""QFrame: the extension, which connects qframe to an application."""

from __future__ import annotations

import sys

import click
from flask import Flask, current_app, has_app_context
from flask.cli import ScriptInfo, pass_script_info

from qframe import config, forks, manager
from qframe.exceptions import ConfigurationError
from qframe.flask import context, settings
from qframe.hooks import of_process
from qframe.manager import QueueManager

_SAID_HELP = {"ignore_unknown_options": True, "help_option_names": []}
"""All words are passed to `qframe`, also --help."""


class QFrame:
    """Connects qframe to a Flask application; opens nothing of a backend.

    ```python
    queue = QFrame()

    def create_app() -> Flask:
        app = Flask(__name__)
        app.config["QFRAME"] = {"default": "redis"}
        queue.init_app(app)
        return app
    ```

    `app.config["QFRAME"]` has the keys of `qframe.toml`; without it qframe looks for that file.
    Jobs run in an application context. `flask qframe ...` is the whole command. With
    `app.testing`, jobs run inside the dispatch.

    Each application has its own connections: a dispatch uses those of `current_app`. Outside of an
    application context, they are those of the application that was connected last.
    """

    def __init__(self, app: Flask | None = None) -> None:
        self._app: Flask | None = None
        """The application connected last."""
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Connects an application. Its settings are read when a connection is first used."""
        self._app = app
        app.extensions["qframe"] = self
        app.cli.add_command(_command)
        _be_of_process(app)
        self.begin_anew()

    @property
    def manager(self) -> QueueManager:
        """The connections. Raises `ConfigurationError` for wrong settings."""
        return manager.current() or _manager_of(self._application())

    def begin_anew(self) -> None:
        """Closes what is open, and reads the settings again at the next use."""
        made = self._application().extensions.pop(_MANAGER, None)
        for each in {manager.current(), made} - {None}:
            each.close()
        manager.use(None)

    def _application(self) -> Flask:
        """Returns the application that runs here, or the one connected last."""
        here = _application()
        if self._app is None or here.extensions.get("qframe") is self:
            return here
        return self._app


_MANAGER = "qframe.manager"
"""The key of an application's extensions with its manager, once it is made."""
_making = forks.lock()
_last: Flask | None = None
"""The application connected last."""


def _be_of_process(app: Flask) -> None:
    """Makes an application the one of code outside of any application context."""
    global _last  # noqa: PLW0603 (one per process)
    _last = app
    config.framework.source = lambda: settings.of(app)
    config.framework.setting = settings.NAME
    config.framework.command_line = "flask qframe"
    hooks = context.hooks_of(app)
    of_process.around, of_process.around_on_loop = hooks.around, hooks.around_on_loop
    manager.find = lambda: _manager_of(_application())


def _application() -> Flask:
    """Returns the application that runs here, or the one connected last."""
    here = current_app._get_current_object() if has_app_context() else None  # type: ignore[attr-defined]  # noqa: SLF001 (Flask's own way)
    found = here if here is not None and "qframe" in here.extensions else _last
    if found is None:
        raise ConfigurationError("QFrame was connected to no application: call init_app")
    return found


def _manager_of(app: Flask) -> QueueManager:
    """Returns the manager of an application. Raises `ConfigurationError` for wrong settings."""
    found: QueueManager | None = app.extensions.get(_MANAGER)
    if found is None:
        with forks.undisturbed(), _making:
            found = app.extensions.get(_MANAGER)
            if found is None:
                given = config.load(given_by=lambda: settings.of(app))
                found = QueueManager(given, context.hooks_of(app))
                app.extensions[_MANAGER] = found
    return found


@click.command(
    "qframe",
    context_settings=_SAID_HELP,
    add_help_option=False,
    short_help="Work, look after and dispatch jobs.",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@pass_script_info
def _command(info: ScriptInfo, words: tuple[str, ...]) -> None:
    """Run the command line `qframe` with what follows, and the application's settings."""
    from qframe.console import app as console  # noqa: PLC0415 (of no use to a server)

    _be_of_process(info.load_app())
    given = sys.argv
    sys.argv = ["qframe", *words]
    try:
        console.main()
    finally:
        sys.argv = given
