"""Does what a page's fenced code blocks say, as its reader would, and compares what comes out.

    python scripts/run_readme.py README.md

A block takes part by its info string. All of a page's blocks share one new folder:

    ```python file=jobs.py      this file is written there (any language; a path in the folder)
    ```console                  the lines that begin with "$ " are run there, each in its own shell
    ```console skip             is left out, like every block that is neither

A line that ends in a backslash goes on in the next one. A command must exit 0, or N where its
line ends in "# exits N". The lines below a command are what it must print, standard error
included: all of it, in this order, where three or more dots match anything within a line and a
line of dots alone matches any number of lines. Runs of white space are equal, empty lines do not
count, and a command with nothing below it may print what it likes.

The folder of the Python that runs this comes first on PATH, so what is tried is what is installed
beside it. Whatever the commands leave running is ended with the page.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS_PER_COMMAND = 120
FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>[^`]*)$")
EXITS = re.compile(r"\s*# exits (\d+)\s*$")
DOTS = re.compile(r"\s*\.{3,}\s*")


class PageError(Exception):
    """The page and what happened differ; says where and how."""


@dataclass
class Block:
    """One fenced block and the line its fence is on."""

    line: int
    info: list[str]
    lines: list[str]

    @property
    def file(self) -> str | None:
        """The path to write this block to, if it asks for that."""
        names = [word.removeprefix("file=") for word in self.info if word.startswith("file=")]
        return names[0] if names else None

    @property
    def is_session(self) -> bool:
        """Whether this block holds commands to run."""
        return self.info[:1] == ["console"] and "skip" not in self.info


@dataclass
class Command:
    """One command of a console block and what the page says of it."""

    line: int
    text: str
    exits: int = 0
    expected: list[str] = field(default_factory=list)


def blocks_of(page: str) -> Iterator[Block]:
    """Give the fenced blocks in order."""
    lines = enumerate(page.splitlines(), start=1)
    for number, line in lines:
        if (opening := FENCE.match(line)) is None:
            continue
        block = Block(number, opening["info"].split(), [])
        for _, inner in lines:
            closing = FENCE.match(inner)
            if (
                closing
                and not closing["info"].strip()
                and len(closing["ticks"]) >= len(opening["ticks"])
            ):
                break
            block.lines.append(inner.removeprefix(opening["indent"]))
        else:
            raise PageError(f"line {number}: this block is never closed")
        yield block


def commands_of(block: Block) -> Iterator[Command]:
    """Give the commands of a console block, each with the output written below it."""
    command: Command | None = None
    lines = enumerate(block.lines, start=block.line + 1)
    for number, line in lines:
        if not line.startswith("$ "):
            if command is not None:
                command.expected.append(line)
            elif line.strip():
                raise PageError(f"line {number}: output before the first command: {line}")
            continue
        if command is not None:
            yield command
        text = line.removeprefix("$ ")
        while text.endswith("\\"):
            _, following = next(lines, (0, ""))
            text = text[:-1] + following.strip()
        exits = EXITS.search(text)
        command = Command(number, EXITS.sub("", text), int(exits[1]) if exits else 0)
    if command is not None:
        yield command


def first_difference(expected: list[str], got: list[str]) -> str | None:
    """Say where the output leaves what is expected; None where it does not."""
    wanted = [squeezed for line in expected if (squeezed := squeeze(line))]
    text = "".join(squeezed + "\n" for line in got if (squeezed := squeeze(line)))
    if not wanted or re.fullmatch(pattern_of(wanted), text):
        return None
    for count in range(1, len(wanted) + 1):
        if not re.match(pattern_of(wanted[:count]), text):
            return f"this does not come where it should: {wanted[count - 1]}"
    return "there is more output than the page shows (a line of ... stands for left out lines)"


def squeeze(line: str) -> str:
    """Make all runs of white space one space."""
    return " ".join(line.split())


def pattern_of(wanted: list[str]) -> str:
    """Build the regular expression for a whole output, a newline after each line."""
    return "".join(
        r"(?:.*\n)*?"
        if DOTS.fullmatch(line)
        else ".*".join(map(re.escape, DOTS.split(line))) + r"\n"
        for line in wanted
    )


class Project:
    """The new folder that a page's files are written to and its commands run in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sessions: list[int] = []
        self.environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "QFRAME_", "VIRTUAL_ENV"))
        } | {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "COLUMNS": "80",
            "NO_COLOR": "1",
            "TERM": "dumb",
        }

    def write(self, name: str, lines: list[str]) -> None:
        """Write a file the page shows."""
        target = (self.folder / name).resolve()
        if not target.is_relative_to(self.folder.resolve()):
            raise PageError(f"{name} is outside the project's folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("".join(line + "\n" for line in lines), encoding="utf-8")

    def run(self, command: Command) -> None:
        """Run a command the page shows and compare."""
        # Not a pipe: what the command leaves running in the background would hold it open.
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                ["/bin/sh", "-c", command.text],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that all of it can be ended
            )
            try:
                status: int | None = process.wait(SECONDS_PER_COMMAND)
            except subprocess.TimeoutExpired:
                status = None
            if is_alive(process.pid):
                self.sessions.append(process.pid)
            output.seek(0)
            got = output.read().decode(errors="replace").splitlines()
        problem = (
            f"still running after {SECONDS_PER_COMMAND} seconds"
            if status is None
            else f"exit status {status}, expected {command.exits}"
            if status != command.exits
            else first_difference(command.expected, got)
        )
        if problem:
            raise PageError(report(command, problem, got))

    def end_all(self) -> None:
        """End what the commands left running."""
        for session in self.sessions:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(session, signal.SIGKILL)


def is_alive(session: int) -> bool:
    """Say whether a session still has a process."""
    try:
        os.killpg(session, 0)
    except ProcessLookupError:
        return False
    return True


def report(command: Command, problem: str, got: list[str]) -> str:
    """Put what was run, what was expected and what came into words."""
    parts = [f"line {command.line}: $ {command.text}", problem]
    for title, lines in (("expected:", command.expected), ("got:", got)):
        parts += [title, textwrap.indent("\n".join(lines).strip("\n") or "(nothing)", "    ")]
    return "\n".join(parts)


def try_page(page: Path) -> int:
    """Do all the page says; give the number of commands run."""
    count = 0
    with tempfile.TemporaryDirectory(prefix="readme-") as folder:
        project = Project(Path(folder))
        try:
            for block in blocks_of(page.read_text(encoding="utf-8")):
                if block.file is not None:
                    print(f"line {block.line}: {block.file}")
                    project.write(block.file, block.lines)
                elif block.is_session:
                    for command in commands_of(block):
                        print(f"line {command.line}: $ {command.text}", flush=True)
                        project.run(command)
                        count += 1
        finally:
            project.end_all()
    if count == 0:
        raise PageError("no command was run: mark a block ```console")
    return count


def main() -> int:
    """Try the page named on the command line."""
    parser = argparse.ArgumentParser(description="Run the code of a Markdown page.")
    parser.add_argument("page", type=Path)
    page: Path = parser.parse_args().page
    try:
        count = try_page(page)
    except PageError as error:
        print(f"\n{page}: {error}", file=sys.stderr)
        return 1
    print(f"{page}: {count} commands did what the page says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
