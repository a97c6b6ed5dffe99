"""Runs mypy, pyright and ty on the modules beside this one, as a user's program has them.

`accepted.py` is without an error, and its `# shown:` lines show what they say. In `refused.py` the
lines with `# error` are errors, and no others; so they are in the code of docs/features/typing.md.
It is pyright as basedpyright packs it, with its
node: nothing is downloaded.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pages import docs_page

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PYTHON = sys.executable
BIN = Path(PYTHON).parent
WRITTEN = [HERE / "accepted.py", HERE / "refused.py"]
CHECKERS = ("mypy", "pyright", "ty")
MARK = re.compile(r"# error(?: \(not (?P<but>[a-z, ]+): .+\))?$")
SHOWN = "  # shown: "

Found = dict[tuple[str, int], list[str]]
"""What is told of each line, by file and number."""


class Told:
    """What a checker says of the files."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.errors: Found = {}
        self.notes: Found = {}

    def add(self, path: str, line: int, *, is_error: bool, text: str) -> None:
        told = self.errors if is_error else self.notes
        told.setdefault((Path(path).name, line), []).append(text)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The files, with one of the code of the page."""
    page = tmp_path_factory.mktemp("docs") / "page.py"
    blocks = re.findall(
        r"^```python\n(.*?)^```", docs_page("typing.md").read_text(), re.MULTILINE | re.DOTALL
    )
    page.write_text("\n".join(blocks))
    return [*WRITTEN, page]


@pytest.fixture(scope="module")
def told(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory, files: list[Path]
) -> dict[str, Told]:
    """Run each checker once over all files, side by side."""
    cache = pytestconfig.rootpath / ".mypy_cache" / "tests"
    project = tmp_path_factory.mktemp("pyright")
    settings = {
        "include": [*map(str, files)],
        "typeCheckingMode": "standard",
        "extraPaths": [str(ROOT)],
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    (project / "pyrightconfig.json").write_text(json.dumps(settings))
    running = {
        name: subprocess.Popen(
            [*map(str, command), *map(str, files if name != "pyright" else ())],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for name, command in {
            "mypy": [PYTHON, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", cache],
            "pyright": [
                BIN / "basedpyright",
                "-p",
                project,
                "--pythonpath",
                PYTHON,
                "--outputjson",
            ],
            "ty": [BIN / "ty", "check", "--python", sys.prefix, "--output-format", "concise"],
        }.items()
    }
    found = {}
    for name, process in running.items():
        out, errors = process.communicate()
        assert process.returncode == 1, (name, out, errors)  # it found errors, and did not break
        found[name] = Told(name)
        for path, line, is_error, text in (_of_json if name == "pyright" else _of_lines)(out):
            found[name].add(path, line, is_error=is_error, text=text)
    return found


def _of_json(out: str) -> Iterator[tuple[str, int, bool, str]]:
    for each in json.loads(out)["generalDiagnostics"]:
        line = each["range"]["start"]["line"] + 1
        yield each["file"], line, each["severity"] == "error", each["message"]


def _of_lines(out: str) -> Iterator[tuple[str, int, bool, str]]:
    for path, line, text in re.findall(r"^(\S+?\.py):(\d+):(?:\d+:)? (.*)$", out, re.MULTILINE):
        yield path, int(line), text.startswith("error"), text


def expected(path: Path, checker: str) -> set[tuple[str, int]]:
    """The lines of which a checker is to complain."""
    marks = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if "# error" in line:
            mark = MARK.search(line)
            assert mark is not None, f"{path.name}:{number}: {line}"
            marks[path.name, number] = (mark["but"] or "").split(", ")
            assert {*marks[path.name, number]} <= {"", *CHECKERS}
    return {place for place, but in marks.items() if checker not in but}


def test_what_is_wrong_is_an_error_and_an_editor_shows_what_is_right(
    told: dict[str, Told], files: list[Path]
) -> None:
    """One test, since each worker of pytest-xdist would run the checkers again."""
    faults: list[tuple[object, ...]] = []
    for checker in CHECKERS:
        errors, notes = told[checker].errors, told[checker].notes
        wanted = {place for path in files for place in expected(path, checker)}
        assert len(wanted) > 80
        more, missed = sorted(errors.keys() - wanted), sorted(wanted - errors.keys())
        faults += [(checker, *place, "not expected", errors[place]) for place in more]
        faults += [(checker, *place, "did not come", []) for place in missed]
        for place, parts in shown(WRITTEN[0]).items():
            text = re.sub(r"[\w.]+\.(?=[A-Z])", "", " ".join(notes.get(place, [])))
            missing = [part for part in parts if part not in text]
            if missing:
                faults.append((checker, *place, f"does not show {missing}", [text]))
    assert not faults, "\n".join(map(str, faults))


def shown(path: Path) -> dict[tuple[str, int], list[str]]:
    """The lines with `# shown:`, and the parts of what is shown."""
    found = {
        (path.name, number): line.partition(SHOWN)[2].split(" | ")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if SHOWN in line
    }
    assert len(found) > 4
    return found
