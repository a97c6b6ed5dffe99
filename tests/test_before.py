"""The code that docs/moving/from-*.md show of another library runs with that library.

Each library is installed into a folder of its own. Delays and intervals are shortened.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pages import docs_page
from tests.support.process import Process, wait_for
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]
_CALL = "import before; before.sign_up()"
_AWAIT = "import asyncio, before; asyncio.run(before.sign_up())"
_BROKER = """
import dramatiq
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(port=PORT))
"""
_CASES = {
    "rq": (["rq"], _CALL, "rq.cli:main worker mail --url redis://127.0.0.1:PORT", "welcome 7"),
    "dramatiq": (
        ["dramatiq[redis]"],
        _CALL,
        "dramatiq.cli:main before --processes 1 --threads 1",
        "welcome 7",
    ),
    "huey": (["huey"], _CALL, "huey.bin.huey_consumer:consumer_main before.huey", "welcome 7"),
    "arq": (["arq"], _AWAIT, "arq.cli:cli before.WorkerSettings", "welcome 7"),
    "taskiq": (
        ["taskiq", "taskiq-redis"],
        _AWAIT,
        "taskiq.__main__:main worker before:broker --workers 1",
        "welcome 7",
    ),
    "apscheduler": (["apscheduler<4"], "", "runpy:run_module before", "poll"),
}


@pytest.mark.parametrize("name", _CASES)
def test_the_code_before_runs(name: str, tmp_path: Path, redis_running: RedisServer) -> None:
    packages, dispatch, worker, expected = _CASES[name]
    port = str(redis_running.port)
    found = re.search(
        r"```python skip\n(.*?)```", docs_page(f"from-{name}.md").read_text(), re.DOTALL
    )
    assert found is not None
    code = found[1].replace("Redis()", f"Redis(port={port})")
    code = code.replace("RedisSettings()", f"RedisSettings(port={port})")
    code = code.replace("redis://localhost", f"redis://127.0.0.1:{port}")
    code = code.replace("_defer_by=10", "_defer_by=0").replace("minutes=5", "seconds=1")
    if name == "arq":  # it has no option for its server but the settings
        code = code.replace(
            "    max_tries", f"    redis_settings = RedisSettings(port={port})\n    max_tries"
        )
    if name == "dramatiq":
        code = _BROKER.replace("PORT", port) + code
    (tmp_path / "before.py").write_text(code)
    environment = installed(tmp_path, *packages)
    if dispatch:
        command = [sys.executable, "-c", dispatch]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    place, *words = worker.replace("PORT", port).split()
    module, _, function = place.partition(":")
    start = f"import sys; sys.argv[0] = {module!r}; from {module} import {function} as f; "
    start += "f(sys.argv[1])" if module == "runpy" else "sys.exit(f())"
    works([sys.executable, "-c", start, *words], tmp_path, environment, expected)


def test_the_tasks_of_celery_run_in_celery(tmp_path: Path, redis_running: RedisServer) -> None:
    page = docs_page("celery.md").read_text()
    found = re.search(r"```python file=tasks.py\n(.*?)```", page, re.DOTALL)
    assert found is not None
    url = f"redis://127.0.0.1:{redis_running.port}/0"
    code = found[1].replace("from qframe.celery", "from celery")
    code = code.replace('Celery("tasks")', f'Celery("tasks", broker={url!r}, backend={url!r})')
    (tmp_path / "tasks.py").write_text(code)
    environment = installed(tmp_path, "celery[redis]")
    subprocess.run([sys.executable, "tasks.py"], cwd=tmp_path, env=environment, check=True)
    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-P", "solo", "-l", "INFO"]
    works(command, tmp_path, environment, "s: 20\n")


def installed(folder: Path, *packages: str) -> dict[str, str]:
    """Install packages into a folder; give the environment that has them."""
    target = folder / "packages"
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--target", str(target)]
    subprocess.run([*pip, *packages], check=True)
    path = f"{target / 'bin'}:{os.environ['PATH']}"
    own = {"PYTHONPATH": f"{folder}:{target}", "PYTHONUNBUFFERED": "1", "PATH": path}
    return os.environ | own


def works(command: list[str], folder: Path, environment: dict[str, str], expected: str) -> None:
    """Run a worker until it has printed this."""
    process = Process(command, folder, "worker", environment)
    try:
        wait_for(lambda: expected in process.out + process.err, expected)
    finally:
        for each in process.descendants():
            each.kill()
        process.end()
        process.report()
