"""The client of a rate-limited service: whole, as a reader would run it."""

from __future__ import annotations

import re
import subprocess
import sys
from http import HTTPStatus
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from examples.api_client import server
from examples.api_client.jobs import FetchWeather
from examples.api_client.server import Service
from qframe import dispatch_sync

ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("fresh")
def test_everything_is_fetched_at_the_pace_the_service_allows() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "examples.api_client", "--stations", "30"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr
    assert re.search(
        r"^stations +30 fetched in [\d.]+ s by 3 workers, 0 failed$", ran.stdout, re.MULTILINE
    )
    (refused,) = re.findall(r"^refused +(\d+): ", ran.stdout, re.MULTILINE)
    assert int(refused) <= 3, "those that a busy machine delayed, and no more"
    (down,) = re.findall(r", of them (\d+) while the service was down$", ran.stdout, re.MULTILINE)
    (again,) = re.findall(r"tried again (\d+) times$", ran.stdout, re.MULTILINE)
    (waited,) = re.findall(r"waited (\d+) times", ran.stdout, re.MULTILINE)
    assert int(down) == int(again) >= 3
    assert int(waited) >= 20
    assert "WARNING weather has raised 3 in 1 s: its jobs wait" in ran.stderr


def asked(service: Service) -> int:
    """Ask the service once and give the status."""
    try:
        with urlopen(f"{service.url}/stations/3") as answer:
            return int(answer.status)
    except HTTPError as refused:
        refused.close()
        return refused.code


def test_the_service_does_refuse_who_is_in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PER_SECOND", 2)
    with Service() as service:
        assert [asked(service) for _ in range(3)] == [200, 200, 429]
        assert service.answers[HTTPStatus.TOO_MANY_REQUESTS] == 1


def test_the_service_does_have_its_bad_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "DOWN_AFTER", 1)
    with Service() as service:
        assert [asked(service) for _ in range(3)] == [200, 503, 503]


def test_without_a_worker_an_error_of_the_service_reaches_the_caller(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "DOWN_AFTER", 1)
    monkeypatch.setattr(server, "DOWN_FOR", 60)
    with Service() as service:
        assert asked(service) == 200
        with pytest.raises(HTTPError, match="503") as caught:
            dispatch_sync(FetchWeather(url=service.url, station=3, folder=fresh))
        caught.value.close()
