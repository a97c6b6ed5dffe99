"""`manage.py qframe ...`: the whole command, with Django set up and its settings."""

from __future__ import annotations

import sys

from django.core.management.base import BaseCommand

from qframe.console import app


class Command(BaseCommand):
    """Hands all words on to `qframe`, also --help."""

    help = "qframe: work, look after and dispatch jobs; manage.py qframe --help lists the commands"
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command line `qframe` with what follows."""
        given = sys.argv
        sys.argv = ["qframe", *argv[2:]]
        try:
            app.main()
        finally:
            sys.argv = given

    def handle(self, *args: str, **_: object) -> None:
        """Run it from code: `call_command("qframe", "size")`; raises `SystemExit`."""
        self.run_from_argv(["manage.py", "qframe", *args])

    def add_arguments(self, parser: object) -> None:
        """Take any words."""
        parser.add_argument("args", nargs="*")  # type: ignore[attr-defined] # argparse's
