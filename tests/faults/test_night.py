"""A night is asked about in the words of the command line, and each cause has its time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from faults import night
from faults.night import Answer, Night, Said
from tests.support.process import wait_for


@pytest.fixture
def dark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Night]:
    monkeypatch.setattr(night, "WITHIN", 0.3)
    monkeypatch.setattr(night, "_PAUSE", 0.01)
    made = Night(tmp_path)
    yield made
    made.end()


def says(monkeypatch: pytest.MonkeyPatch, *texts: str) -> None:
    """Have the commands say these one after the other, the last one for ever."""
    left = [*texts]
    monkeypatch.setattr(Night, "qframe", lambda *_: Said(0, left.pop(0) if left[1:] else left[0]))


def test_it_is_asked_until_the_cause_is_named(dark: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, "nothing yet", "a\n  1. no worker takes mial (did you mean mail?)\nb")
    answer = Answer("a typo")
    dark.ask(answer, "why mial", "no worker takes mial")
    assert (answer.is_named, answer.line) == (True, "1. no worker takes mial (did you mean mail?)")
    assert answer.seconds > 0


def test_a_cause_that_is_not_named_in_time_is_told(
    dark: Night, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(monkeypatch, "all is well\nreally")
    answer = Answer("a typo")
    dark.ask(answer, "why mial", "no worker")
    dark.ask(answer, "why mial", "all")  # a later answer mends nothing
    assert (answer.is_named, answer.line) == (False, "all is well / really")
    assert night._told(answer).startswith("UNSAID a typo, 0.")


def test_a_command_that_is_not_there_is_named(dark: Night, monkeypatch: pytest.MonkeyPatch) -> None:
    says(monkeypatch, "Error: No such command 'undo'.")
    answer = Answer("a mistaken clear")
    dark.ask(answer, "undo --dry-run", "clear")
    assert night._told(answer) == "--     a mistaken clear: this version has no qframe undo"


def test_a_deploy_changes_the_program(dark: Night) -> None:
    dark.deploy(more="X = 1\n", carrier="    carrier: str\n")
    text = (dark.root / "shop.py").read_text()
    assert text.endswith("X = 1\n")
    compile(text, "shop.py", "exec")
    assert "    order: int\n    carrier: str\n" in text


def test_its_workers_end_with_it_however_it_ends(tmp_path: Path) -> None:
    script = (
        "import time\n"
        "from pathlib import Path\n"
        "from faults.night import Night\n"
        "Night.wait = lambda *_: None\n"
        f"made = Night(Path({str(tmp_path)!r}))\n"
        "made.begin('mail')\n"
        "print(made.workers['mail'].pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    root = Path(night.__file__).parents[1]
    with subprocess.Popen([sys.executable, "-c", script], cwd=root, stdout=subprocess.PIPE) as made:
        assert made.stdout is not None
        worker = psutil.Process(int(made.stdout.readline()))
        assert worker.is_running()
        made.kill()
    wait_for(lambda: not worker.is_running() or worker.status() == "zombie", "its worker's end")


@pytest.mark.timeout(900)
def test_each_cause_is_named(tmp_path: Path) -> None:
    """Takes a minute and a half: `make night` is the same."""
    whole = Night(tmp_path)
    try:
        answers = [*night.through(whole)]
    finally:
        whole.end()
    assert len(answers) == len(night.TROUBLES)
    assert [each.line for each in answers if not (each.is_named or each.missing)] == []
