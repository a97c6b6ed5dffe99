"""What is offered by name, and what costs nothing where it is not used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from qframe import schedule
from qframe.dispatch.function import queueable
from qframe.exceptions import ConfigurationError, InvalidJob
from tests.schedules.conftest import Send


@queueable
def plain() -> None: ...


def test_importing_qframe_imports_no_schedules() -> None:
    code = "import qframe, sys; print([n for n in sys.modules if 'schedules' in n or 'cron' in n])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_a_function_without_parameters_is_taken_as_it_is() -> None:
    assert schedule(plain).daily().job.wire_name().endswith("plain")


def test_what_is_no_job_is_refused_where_it_is_written() -> None:
    with pytest.raises(InvalidJob):
        schedule(Send)  # type: ignore[arg-type] # a class is no job
    with pytest.raises(ConfigurationError, match="unknown time zone"):
        schedule(Send()).timezone("Europe/Wien")
    with pytest.raises(ConfigurationError, match="none, last or all"):
        schedule(Send()).missed("first")  # type: ignore[arg-type] # a mistake
    with pytest.raises(ConfigurationError, match="name for a schedule"):
        schedule(Send()).name(" ")
    with pytest.raises(ConfigurationError, match="takes a function"):
        schedule(Send()).before("x")  # type: ignore[arg-type] # a mistake
