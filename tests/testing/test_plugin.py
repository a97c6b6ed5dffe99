"""The fixtures that pytest has where qframe is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

JOBS = """
from qframe import Queueable

class SendWelcome(Queueable):
    user_id: int
    queue = "emails"

    def handle(self):
        open(f"ran-{self.user_id}", "w").close()

def sign_up(user_id):
    SendWelcome.dispatch(user_id=user_id)
"""

TESTS = """
from pathlib import Path
from app.jobs import SendWelcome, sign_up
from qframe.testing import drain

def test_dispatches(queued):
    sign_up(7)
    queued.assert_dispatched(SendWelcome, times=1, where=lambda job: job.user_id == 7)

def test_anew(queued):
    queued.assert_nothing_dispatched()

def test_really(qframe_database):
    sign_up(8)
    assert drain(raises=True).done == 1
    assert qframe_database.connection().size("emails") == 0
    assert Path("ran-8").exists()

def test_wrong(queued):
    sign_up(9)
    queued.assert_dispatched(SendWelcome, queue="low")
"""


@pytest.fixture
def application(tmp_path: Path) -> Path:
    """Give an application with tests of its own."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__init__.py").write_text("")
    (tmp_path / "app" / "jobs.py").write_text(JOBS)
    (tmp_path / "test_app.py").write_text(TESTS)
    return tmp_path


def pytest_of(
    folder: Path, *arguments: str, before: str = "", autoload: bool = False
) -> subprocess.CompletedProcess[str]:
    environment = {key: text for key, text in os.environ.items() if not key.startswith("PYTEST_")}
    if not autoload:
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    environment["PYTHONPATH"] = os.pathsep.join((str(folder), str(ROOT)))
    program = f"{before}\nimport sys, pytest\nsys.exit(pytest.main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-c", program, "-q", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_the_fixtures(application: Path) -> None:
    done = pytest_of(application, "-W", "error", "-p", "qframe.testing.plugin")
    assert done.returncode == 1
    assert "3 passed" in done.stdout
    assert "1 failed" in done.stdout
    # What fails is shown at the line of the test, with what there was.
    assert "but it was not; dispatched were:" in done.stdout
    assert "- SendWelcome(user_id=9) on database:emails" in done.stdout
    assert "raise AssertionError" not in done.stdout
    left = {each.name for each in application.iterdir()} - {"__pycache__"}
    assert left == {"app", "test_app.py", "ran-8"}


def test_it_is_announced_to_pytest() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        points = tomllib.load(file)["project"]["entry-points"]["pytest11"]
    assert points == {"qframe": "qframe.testing.plugin"}


def test_an_installed_package_brings_it_and_it_imports_nothing_heavy(tmp_path: Path) -> None:
    site = tmp_path / "site"
    info = site / "someone-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: someone\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pytest11]\nqframe = qframe.testing.plugin\n")
    (info / "RECORD").write_text("")
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_it(pytestconfig):\n"
        "    assert pytestconfig.pluginmanager.get_plugin('qframe')\n"
        "    heavy = ['sqlalchemy', 'redis', 'greenstalk', 'typer', 'rich', 'qframe.worker',\n"
        "             'qframe.testing.fakes', 'qframe.console']\n"
        "    assert [name for name in heavy if name in sys.modules] == []\n"
    )
    before = f"import sys; sys.path.insert(0, {str(site)!r})"
    # Without the plugins of this environment, one of which loads rich.
    others = [
        option
        for name in ("hypothesispytest", "xdist", "xdist.looponfail", "timeout", "anyio")
        for option in ("-p", f"no:{name}")
    ]
    done = pytest_of(tmp_path, *others, before=before, autoload=True)
    assert done.returncode == 0, done.stdout + done.stderr
