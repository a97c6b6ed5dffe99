"""The `qframe` command: its groups, and how errors reach the user in one line."""

from __future__ import annotations

import errno
import gc
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module, metadata
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from qframe import config
from qframe.console import place
from qframe.console.stream import fill_standard_descriptors, leave_streams
from qframe.console.text import print_error
from qframe.exceptions import (
    BackendUnavailable,
    ConfigurationError,
    InvalidJob,
    QframeError,
    Unsupported,
)
from qframe.jobs import project
from qframe.worker.options import NO_ANSWER, USAGE

_READER_GONE = 141
"""The exit code of a shell after SIGPIPE."""
_UNWRITABLE = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EAGAIN}
_WORKING = {"work", "supervise", "relay"}
"""The commands, and `schedule work`, whose exit code is about their work and not their output."""
_HELP = {"-h", "--help"}
_COMPLETION = "_QFRAME_COMPLETE"
"""Set by a shell that asks for completions, which typer then prints."""
_SUMMARY = 200
_LONGEST_NAME = 15
COMMANDS: dict[str, dict[str, tuple[str, ...]]] = {
    "Work": {
        "work": ("work",),
        "supervise": ("supervise",),
        "workers": ("workers",),
        "scale": ("scale",),
        "restart": ("restart",),
        "relay": ("relay",),
        "health": ("health",),
    },
    "Queues": {
        "queues": ("pause", "resume", "size", "clear", "kick"),
        "holds": ("hold", "unhold", "holds"),
        "undo": ("undo",),
    },
    "Jobs": {
        "classes": ("jobs",),
        "jobs": ("dispatch",),
        "status": ("status", "cancel", "event"),
        "why": ("why",),
    },
    "Failed": {
        "failed": ("failed", "retry", "forget", "silence", "flush", "prune"),
        "retries": ("retries",),
    },
    "Batches and flows": {
        "batches": ("batch", "batches", "cancel_batch", "retry_batch", "prune_batches"),
        "flows": ("flow", "flows"),
    },
    "Schedules": {"schedule": ("schedule",)},
    "Monitoring": {
        "top": ("top",),
        "usage": ("usage",),
        "web": ("web", "metrics"),
        "monitor": ("monitor",),
        "forecast": ("forecast",),
        "doctor": ("doctor",),
        "workers": ("counters",),
        "deploys": ("deploy_mark",),
    },
    "Setup": {
        "setup": ("init", "check", "key"),
        "migrate": ("migrate",),
        "importing": ("import_",),
        "moving": ("move",),
    },
}
"""The commands by subject and module of the console; each has the name of its function."""
_PLACES = {
    # `import_`, as Python's word is taken
    command.strip("_").replace("_", "-"): (subject, module, command)
    for subject, group in COMMANDS.items()
    for module, commands in group.items()
    for command in commands
}


def _shown(command: Callable[..., object]) -> str:
    """Returns the help of a command; typer must not fold its examples."""
    text = re.sub(r"\n *qframe ", "\n  qframe ", inspect.cleandoc(command.__doc__ or ""))
    return text.replace("\n\n  qframe", "\n\n\b\n  qframe")


class GroupedCommands(TyperGroup):
    """Lists commands by their subjects, each with its whole summary."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401, ARG002 (of click, or of typer's copy)
        subjects: dict[str, list[tuple[str, str]]] = {}
        for name, each in self.commands.items():
            row = name, each.get_short_help_str(_SUMMARY)
            subjects.setdefault(self.subject_of(name), []).append(row)
        for subject, rows in subjects.items():
            with formatter.section(subject):
                formatter.write_dl(rows, col_max=_LONGEST_NAME)

    def subject_of(self, name: str) -> str:  # noqa: ARG002 (others have several)
        return "Commands"


class LazyCommands(Mapping[str, Any]):
    """The commands of `qframe` by name. The module of one is imported when it is asked for."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 (a command of click, or of typer's copy)
        if name not in self._made:
            _, module, command = _PLACES[name]
            self._made[name] = _made(name, module, command)
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in _PLACES

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


class AllCommands(GroupedCommands):
    """`qframe` itself. It imports all commands for its help, and else the one that is called."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401 (of typer)
        super().__init__(**attributes)
        self.commands: Any = LazyCommands()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401, ARG002 (as above)
        if cmd_name not in self.commands:
            return None
        return self.commands[cmd_name]  # `get` would take an error of its module for one of ours

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 (as above)
        return [*self.commands]

    def subject_of(self, name: str) -> str:
        return _PLACES[name][0]


def _imported(module: str) -> ModuleType:
    """Imports a module; the collector leaves out what came with it, as in `qframe_health`."""
    if not gc.isenabled():
        return import_module(module)
    gc.disable()
    try:
        return import_module(module)
    finally:
        gc.freeze()
        gc.enable()


def _made(name: str, module: str, function: str) -> Any:  # noqa: ANN401 (as above)
    """Imports the module of a command, and returns what typer makes of its function."""
    found = _imported(f"qframe.console.{module}")
    if module == "schedule":
        acts, about = found.COMMANDS, "List, run, pause and add schedules."
    else:
        acts, about = {name: getattr(found, function)}, None
    made = typer.Typer(help=about, cls=GroupedCommands, rich_markup_mode=None, add_completion=False)
    for each, act in acts.items():
        made.command(each, help=_shown(act))(act)
    return get_command(made)


app = typer.Typer(
    name="qframe",
    cls=AllCommands,
    help="Laravel's queue for Python: dispatch jobs, run workers, watch queues.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"qframe {metadata.version('qframe')}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Runs the command line; an expected error is one line on stderr.

    Without any word it says how everything stands, on a terminal and in a project; else it is help.

    Exit codes: 2 wrong usage or configuration, 69 the backend does not answer, 1 otherwise.
    """
    fill_standard_descriptors()
    streams = sys.stdout, sys.stderr
    words = sys.argv[1:]
    try:
        code = _called(words)
    except (ConfigurationError, InvalidJob, Unsupported) as error:
        code = print_error(str(error), USAGE)
    except BackendUnavailable as error:
        code = print_error(str(error), NO_ANSWER)
    except QframeError as error:
        code = print_error(str(error), 1)
    except UnicodeEncodeError as error:
        # An argument may be any bytes: no backend accepts undecodable text.
        code = print_error(f"{error.object!r} is not UTF-8", USAGE)
    except (KeyboardInterrupt, typer.Abort):
        code = print_error("interrupted", 130)
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        code = _unwritten(error)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        code = print_error(error.format_message(), USAGE)
    finally:
        project.advise(None)  # a program may go on after it
    sys.stdout, sys.stderr = streams  # a job's stream may raise anything
    sys.exit(_left(words, code))


def _called(words: Sequence[str]) -> int:
    """Calls the command. Raises `BrokenPipeError` if the reader of its output has gone."""
    try:
        return _called_by_typer(words)
    except SystemExit as ended:
        # typer and rich make exit code 1 of it
        gone = ended.__context__
        if isinstance(gone, BrokenPipeError) and not _works(words):
            raise gone from None
        raise


def _called_by_typer(words: Sequence[str]) -> int:
    if _COMPLETION in os.environ:
        return app(words, prog_name="qframe", standalone_mode=False) or 0
    if not words and sys.stdout.isatty():
        from qframe.console import top  # noqa: PLC0415 (of no use to a command)

        if top.has_project():
            return top.state()
    _check_words(words)
    place.advise(words)
    alone = words in ([], ["schedule"])
    return _helped(words) if alone else app(words, standalone_mode=False) or 0


def _left(words: Sequence[str], code: int) -> int:
    """Returns the exit code after the output is written; a worker ignores jobs' output."""
    error = leave_streams()
    return code if error is None or code or _works(words) else _unwritten(error)


def _works(words: Sequence[str]) -> bool:
    """Whether the exit code is about the work, and not about the output."""
    return not _WORKING.isdisjoint(words[:2]) and _HELP.isdisjoint(words)


def _unwritten(error: OSError) -> int:
    """Reports why something could not be written, unless stdout's reader has gone."""
    if isinstance(error, BrokenPipeError):
        return _READER_GONE
    return print_error(f"cannot write: {error.strerror}", 1)


def _helped(words: Sequence[str]) -> int:
    """Prints help, and which command is likely meant in a framework's project."""
    place.print_hint(config.here(), " ".join(words))
    app([*words, "--help"], standalone_mode=False)
    return 0


def _check_words(words: Sequence[str]) -> None:
    """Refuses an empty or blank word: an unset shell variable would mean the default, or all."""
    before = ""
    for number, word in enumerate(words, 1):
        name, has_value, value = word.partition("=") if word.startswith("--") else ("", "", word)
        if not value.strip() and (has_value or not name):
            option = name or (before if before.startswith("-") else "")
            shown = option or f"argument {number}"
            raise ConfigurationError(f"{shown} is empty: give it a value, or leave it out")
        before = word
