"""QFrame: the extension, which connects qframe to an application."""

from __future__ import annotations

import sys

import click
from flask import Flask

from qframe import config, manager
from qframe.flask import context, settings
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

    A process has one application: the last one connected.
    """

    def __init__(self, app: Flask | None = None) -> None:
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Connects an application. Its settings are read when a connection is first used."""
        config.source = lambda: settings.of(app)
        config.command_line = "flask qframe"
        self.begin_anew()
        context.around_jobs_of(app)
        app.extensions["qframe"] = self
        app.cli.add_command(_command)

    @property
    def manager(self) -> QueueManager:
        """The connections. Raises `ConfigurationError` for wrong settings."""
        return manager.default()

    def begin_anew(self) -> None:
        """Closes what is open, and reads the settings again at the next use."""
        before = manager.current()
        if before is not None:
            before.close()
        manager.use(None)


@click.command(
    "qframe",
    context_settings=_SAID_HELP,
    add_help_option=False,
    short_help="Work, look after and dispatch jobs.",
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def _command(words: tuple[str, ...]) -> None:
    """Run the command line `qframe` with what follows, and the application's settings."""
    from qframe.console import app as console  # noqa: PLC0415 (of no use to a server)

    given = sys.argv
    sys.argv = ["qframe", *words]
    try:
        console.main()
    finally:
        sys.argv = given
