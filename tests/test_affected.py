"""`make affected`: which tests a change touches, by what their files import."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts import affected
from scripts.affected import Graph, changes

FILES = {
    "qframe/__init__.py": "from qframe.dispatch.sending import send\n",
    "qframe/dispatch/__init__.py": "",
    "qframe/dispatch/sending.py": "from qframe.payload import packed\n",
    "qframe/payload.py": "def packed(): ...\n",
    "qframe/driver.py": "",
    "qframe/web/__init__.py": "",
    "qframe/web/pages.py": "def later():\n    from qframe.payload import packed\n",
    "qframe/web/page.html": "",
    "qframe/console/app.py": 'COMMANDS = {"failed": ("retry_all",), "work": ("work",)}\n',
    "qframe/console/failed.py": "def retry_all(): ...\n",
    "qframe/console/work.py": 'DRIVER = "qframe.driver"\n',
    "tests/conftest.py": "from tests.support import server\nimport qframe.payload\n",
    "tests/support/server.py": "",
    "tests/support/process.py": 'COMMAND = ["qframe.console.app", "work"]\n',
    "tests/support/zoo.py": "",
    "tests/test_public.py": "from qframe import send\n",
    "tests/test_alone.py": "",
    "tests/test_page.py": 'TEXT = open("docs/page.md")\nNAME = "page.md"\n',
    "tests/web/conftest.py": "import qframe.web.pages\n",
    "tests/web/test_shown.py": "",
    "tests/worker/test_real.py": "from tests.support.process import COMMAND\n",
    "tests/console/test_retry.py": 'from tests.support.process import COMMAND\nX = "retry-all"\n',
    "docs/page.md": "",
}
WHOLE = sorted(name for name in FILES if Path(name).name.startswith("test_"))
COMMANDS = ["tests/console/test_retry.py", "tests/worker/test_real.py"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("tests/test_alone.py", ["tests/test_alone.py"]),
        ("qframe/payload.py", ["tests/test_public.py", "tests/web/test_shown.py"]),
        ("qframe/dispatch/sending.py", ["tests/test_public.py"]),
        ("qframe/web/pages.py", ["tests/web/test_shown.py"]),
        ("qframe/web/page.html", ["tests/web/test_shown.py"]),
        ("tests/web/conftest.py", ["tests/web/test_shown.py"]),
        ("qframe/driver.py", COMMANDS),
        ("qframe/console/app.py", COMMANDS),
        ("qframe/console/failed.py", ["tests/console/test_retry.py"]),
        ("docs/page.md", ["tests/test_page.py"]),
        ("docs/other.md", []),
        ("tests/support/zoo.py", []),
        ("tests/support/server.py", WHOLE),
        ("tests/conftest.py", WHOLE),
        ("pyproject.toml", WHOLE),
        ("qframe/__init__.py", WHOLE),
    ],
)
def test_a_change_touches_what_uses_it(root: Path, changed: str, expected: list[str]) -> None:
    assert Graph(root).affected([changed]) == expected


def test_a_file_that_is_gone_touches_those_beside_it(root: Path) -> None:
    assert Graph(root).affected(["qframe/web/gone.py"]) == ["tests/web/test_shown.py"]


def test_changes_are_those_since_the_branch_left_and_what_is_not_committed(root: Path) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(root), *who, *words], check=True, capture_output=True)

    git("init", "-b", "main")
    git("add", ".")
    git("commit", "-m", "all")
    git("checkout", "-b", "mine")
    (root / "qframe/driver.py").write_text("committed = 1\n")
    git("commit", "-am", "mine")
    git("checkout", "main")
    (root / "qframe/payload.py").write_text("theirs = 1\n")
    git("commit", "-am", "theirs")
    git("checkout", "mine")
    (root / "tests/test_alone.py").write_text("changed = 1\n")
    (root / "tests/test_new.py").write_text("")
    found = {"qframe/driver.py", "tests/test_alone.py", "tests/test_new.py"}
    assert changes("main", root) == found


def test_a_base_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert affected.main(["no-such-branch"]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)


@pytest.mark.slow  # it reads all there is
def test_each_test_of_ours_uses_what_it_imports() -> None:
    graph = Graph()
    assert "tests/test_payload.py" in graph.affected(["qframe/payload/envelope.py"])
    assert "tests/worker/test_signals.py" in graph.affected(["qframe/worker/runner.py"])
    web = graph.affected(["qframe/web/guard.py"])
    assert "tests/web/test_guard.py" in web
    assert "tests/worker/test_signals.py" not in web
