"""Times a stranger's first job: follows pages of docs/start as printed, in an empty folder.

    python -m scripts.newcomer [--sdist FILE | --venv FOLDER] [PAGE...]

Each page has a folder of its own with nothing in it, beside `qframe`, the unpacked sdist, which is
all a checkout is needed for. HOME is empty, and so is the environment but for PATH and what pip
needs on this machine. The commands are typed into /bin/sh, so that what one sets is there for the
next. Blocks are marked as scripts/run_readme.py says; of those it skips, three take part here:

    ```console skip install     is timed apart: it downloads and installs
    ```console skip terminal    is typed into a new terminal, where the last command goes on
    ```console skip typed       is typed like any other

A file must be named in the text above its block, since a reader does not see how it is marked. The
clock stops when the first `qframe work` has printed what the page says. It counts what the computer
takes, not reading and typing. Port 8000 becomes one that is free. With --venv nothing is installed:
all pages use this environment.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from scripts.run_readme import (
    Block,
    Command,
    PageError,
    blocks_of,
    commands_of,
    first_difference,
    pattern_of,
    report,
    squeeze,
)

ROOT = Path(__file__).parents[1]
SECONDS = 180
_TARGET = 60
_PAGES = ("script", "fastapi", "django", "flask")


@dataclass
class Times:
    """The seconds of one page."""

    page: str
    install: float = 0.0
    first_job: float = 0.0

    def add(self, word: str, seconds: float) -> None:
        """Count what a command of a block with this word took."""
        if word == "install":
            self.install += seconds
        else:
            self.first_job += seconds


class Terminal:
    """One /bin/sh that is typed into; what it prints is in a file."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the terminal)
        self._seen = 0
        reads, self._typed = os.pipe()
        self._shell = subprocess.Popen(
            ["/bin/sh"],
            cwd=folder,
            env=environment,
            stdin=reads,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that all of it can be ended
        )
        os.close(reads)

    def type(self, command: Command, *, goes_on: bool = False) -> None:
        """Type a command and wait for its end, or where it goes on for what it is to print."""
        os.write(self._typed, f"{command.text}\nprintf '\\nexit status %s\\n' $?\n".encode())
        wanted = [squeezed for line in command.expected if (squeezed := squeeze(line))]
        lines: list[str] = []
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            got = self._new()
            ended = re.search(r"^exit status (\d+)\n", got, re.MULTILINE)
            lines = (got[: ended.start()] if ended else got).splitlines()
            squeezed = "".join(s + "\n" for line in lines if (s := squeeze(line)))
            if ended:
                self._seen += len(got.encode())
                problem = first_difference(command.expected, lines)
                if int(ended[1]) != command.exits:
                    problem = f"exit status {ended[1]}, expected {command.exits}"
                if problem:
                    raise PageError(report(command, problem, lines))
                return
            if goes_on and wanted and re.match(pattern_of(wanted), squeezed):
                return
            time.sleep(0.01)
        raise PageError(report(command, f"not seen within {SECONDS} seconds", lines))

    def _new(self) -> str:
        size = os.fstat(self._output.fileno()).st_size
        found = os.pread(self._output.fileno(), size - self._seen, self._seen)
        return found.decode(errors="replace")

    def close(self) -> None:
        """End the shell and all that runs in it."""
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait()
        os.close(self._typed)
        self._output.close()


def hidden_files(page: str) -> Iterator[str]:
    """Give the names of a page's files that the text above their block does not have."""
    lines = page.splitlines()
    before = 0
    for block in blocks_of(page):
        if block.file and f"`{block.file}`" not in "\n".join(lines[before : block.line - 1]):
            yield block.file
        before = block.line + len(block.lines) + 1


def follow(page: Path, folder: Path, home: Path, venv: Path | None = None) -> Times:
    """Do what the page says until its first job has run."""
    if venv is not None:
        (folder / ".venv").symlink_to(venv)
    text = page.read_text(encoding="utf-8")
    for name in hidden_files(text):
        raise PageError(f"{page.name} does not show a reader the name of the file {name}")
    port = _free_port()
    text = re.sub(r"\b8000\b", str(port), text)
    environment = _environment(home)
    times = Times(page.stem)
    with ExitStack() as terminals:

        def opened() -> Terminal:
            return terminals.enter_context(closing(Terminal(folder, environment)))

        first = opened()
        for block in blocks_of(text):
            word = block.info[-1] if block.info else ""
            if block.file:
                _write(folder / block.file, block)
            if block.info[:1] != ["console"] or word == "skip":
                continue
            terminal = opened() if word == "terminal" else first
            commands = list(commands_of(block))
            if word == "install" and venv is not None:
                commands = [command for command in commands if "activate" in command.text]
            for command in commands:
                last = word == "terminal" and command is commands[-1]
                works = "qframe work" in command.text
                began = time.monotonic()
                terminal.type(command, goes_on=works or last)
                times.add(word, time.monotonic() - began)
                if works:
                    return times
    raise PageError(f"{page.name} has no `qframe work`")


def _write(target: Path, block: Block) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(f"{line}\n" for line in block.lines), encoding="utf-8")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _environment(home: Path) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("PIP_") or "SSL_CERT" in name or name.lower().endswith("_proxy")
    }
    path = [str(Path(sys.base_prefix) / "bin"), "/usr/bin", "/bin"]
    return kept | {"PATH": os.pathsep.join(path), "HOME": str(home), "COLUMNS": "80"}


def unpacked(sdist: Path, folder: Path) -> None:
    """Unpack an sdist as the folder `qframe` that the pages install from."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (folder / sdist.name.removesuffix(".tar.gz")).rename(folder / "qframe")


def built(folder: Path) -> Path:
    """Build the sdist of this checkout."""
    command = [sys.executable, "-m", "build", "--sdist", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (made,) = folder.glob("*.tar.gz")
    return made


def main() -> int:
    """Follow the pages, each from an empty folder, and print their seconds."""
    parser = argparse.ArgumentParser(description="Time the first job of each page of docs/start.")
    parser.add_argument("--sdist", type=Path, help="use this instead of building one")
    parser.add_argument("pages", type=Path, nargs="*", metavar="PAGE")
    parser.add_argument("--venv", type=Path, help="an environment with qframe and all extras")
    options = parser.parse_args()
    pages = options.pages or [ROOT / "docs" / "start" / f"first-{name}.md" for name in _PAGES]
    with tempfile.TemporaryDirectory(prefix="newcomer-") as name:
        root = Path(name)
        venv: Path | None = options.venv and options.venv.resolve()
        if venv is None:
            unpacked(options.sdist or built(root), root)
        print("page               install  first job")
        for page in pages:
            folder, home = root / page.stem, root / f"home-of-{page.stem}"
            folder.mkdir()
            home.mkdir()
            try:
                times = follow(page, folder, home, venv)
            except PageError as error:
                print(f"{page}: {error}", file=sys.stderr)
                return 1
            missed = "" if times.first_job < _TARGET else f"  MISSED: under {_TARGET} s"
            print(f"{times.page:16} {times.install:7.1f} s {times.first_job:8.1f} s{missed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
