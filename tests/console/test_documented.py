"""Each `qframe ...` of README and docs is a command with these options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from qframe.console.app import app
from tests.support.pages import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND: Any = get_command(app)
TYPED = re.compile(
    r"^\s*\$ (?:[A-Z_]+=\S+ )*(qframe [^\n|;&>#]*)|`(qframe [a-z][^`\n]*)`", re.MULTILINE
)


def unknown(command: str) -> str | None:
    """Say what qframe does not know of a command; placeholders and what is left out are fine."""
    try:
        words = [each for each in shlex.split(command)[1:] if each != "\\"]
    except ValueError:  # a quote that ends on another line
        return None
    found = COMMAND
    while hasattr(found, "commands") and words and not words[0].startswith("-"):
        name = words.pop(0)
        if name not in found.commands:
            return f"no command {name}"
        found = found.commands[name]
    try:
        with found.make_context("qframe", words):
            return None
    except (Exception, SystemExit) as error:  # noqa: BLE001 (each Typer has classes of its own)
        return getattr(error, "message", "") if type(error).__name__ == "NoSuchOption" else None


def shown(text: str) -> Iterator[str]:
    for typed in TYPED.findall(text):
        (command,) = filter(None, typed)
        if not any(each in command for each in ("...", "$", "[", "|", "--help")):
            yield command


def test_it_is_told_what_is_wrong() -> None:
    assert unknown("qframe pause mail --for 60") is None
    assert unknown("qframe pause --queue mail") == "No such option: --queue"
    assert unknown("qframe puase") == "no command puase"


def test_the_commands_of_all_pages_are_there() -> None:
    found = [
        (page.name, command, why)
        for page in PAGES
        for command in shown(page.read_text(encoding="utf-8"))
        if (why := unknown(command))
    ]
    assert found == []
