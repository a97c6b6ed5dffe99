"""The suite as a driver's author runs it: one command, in a folder that is no checkout of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import qframe.testing.conformance as suite
from tests.conformance.mutants import MUTANTS

ROOT = Path(__file__).parents[2]
DRIVER = ROOT / "tests" / "plugins" / "list_driver"


def ran(folder: Path, *args: str, **environment: str) -> tuple[int, str]:
    """Run pytest with nothing of this project but qframe; give its exit code and what it said."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *args]
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTEST", "HISTORIES"))
    }
    path = os.pathsep.join([str(ROOT), str(DRIVER)])
    ended = subprocess.run(
        command,
        cwd=folder,
        env={**kept, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


def conformance(folder: Path, *args: str) -> tuple[int, str]:
    return ran(folder, "--pyargs", "qframe.testing.conformance", *args)


def test_a_driver_is_tested_by_one_command(tmp_path: Path) -> None:
    code, said = conformance(tmp_path, "--backend", "qframe_list_bench:ListBench")
    assert code == 0, said
    assert "test_histories.py ." in said
    assert " since it has no BURY" in said


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ((), "pass --backend"),
        (("--backend", "qframe_list_bench"), "pass --backend"),
        (("--backend", "nowhere:Bench"), "No module named 'nowhere'"),
        (("--backend", "qframe_list_bench:Nothing"), "no attribute 'Nothing'"),
        (("--backend", "qframe_list:ListBackend"), "a class derived from"),
    ],
    ids=lambda part: "-".join(part) if isinstance(part, tuple) else "",
)
def test_a_wrong_name_is_one_line(tmp_path: Path, name: tuple[str, ...], fault: str) -> None:
    code, said = conformance(tmp_path, *name)
    assert code == pytest.ExitCode.USAGE_ERROR
    (line,) = [each for each in said.splitlines() if each.strip()]
    assert fault in line


def test_programs_may_have_an_option_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "def pytest_addoption(parser):\n    parser.addoption('--backend')\n"
    )
    (tmp_path / "test_it.py").write_text(
        "def test_it(request):\n    assert request.config.getoption('--backend') == 'mine'\n"
    )
    code, said = ran(tmp_path, "--backend", "mine")
    assert code == 0, said


def test_neither_qframe_nor_its_testing_needs_pytest() -> None:
    code = "import sys, qframe, qframe.testing; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_our_own_backends_run_all_of_it() -> None:
    folder = Path(suite.__file__).parent
    ours = {path.name for path in (ROOT / "tests").glob("conformance/test_*.py")}
    ours |= {path.name for path in (ROOT / "tests").glob("histories/test_*.py")}
    assert {path.name for path in folder.glob("test_*.py")} <= ours


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_driver_that_is_broken_is_told(tmp_path: Path, mutant: str) -> None:
    options = ("--backend", f"tests.conformance.mutants:{mutant}", "-x", "-k")
    code, said = conformance(tmp_path, *options, "not test_histories")
    assert code == pytest.ExitCode.TESTS_FAILED, said
