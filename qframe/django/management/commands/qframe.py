"""`manage.py qframe ...`: the whole command, with Django set up and its settings."""

from __future__ import annotations

import sys

from django.core.management.base import BaseCommand

from qframe.console import app


class Command(BaseCommand):
    """Passes all words on to `qframe`, also --help."""

    help = "qframe: work, look after and dispatch jobs; manage.py qframe --help lists the commands"
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Runs the command line `qframe` with the following words."""
        given = sys.argv
        sys.argv = ["qframe", *argv[2:]]
        try:
            app.main()
        finally:
            sys.argv = given

    def handle(self, *args: str, **_: object) -> None:
        """Runs it from code: `call_command("qframe", "size")`. Raises `SystemExit`."""
        self.run_from_argv(["manage.py", "qframe", *args])

    def add_arguments(self, parser: object) -> None:
        """Accepts any words."""
        parser.add_argument("args", nargs="*")  # type: ignore[attr-defined] # argparse's
