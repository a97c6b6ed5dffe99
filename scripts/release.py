"""Makes a release: builds it, tries what was built as its users will, and tags it.

    python -m scripts.release            make release
    python -m scripts.release --dry-run  make release ARGS=--dry-run, which does all but the tag
    python -m scripts.release --address https://forge/owner/name  writes [project.urls], once

The version is that of pyproject.toml. It is refused, with a line for each reason and exit 2, where
the tree has changes, pyproject.toml has no addresses, CHANGELOG.md has no section for it,
docs/reference/versions.md no upgrade note, or its tag is there. Publishing is the workflow's part
(.github/workflows/release.yml): it begins when the tag is pushed.

The addresses are written and committed, not made by a hook of the build: so an sdist, a checkout
without git and a fork build the same metadata.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

ROOT = Path(__file__).parents[1]
_NOTES = Path("docs", "reference", "versions.md")


def refusals(root: Path, version: str) -> Iterator[str]:
    """Say why this version cannot be released from this folder now."""
    if changed := _git(root, "status", "--porcelain"):
        yield f"the tree has changes, commit them first: {changed.splitlines()[0][3:]}"
    if not _project(root).get("urls"):
        yield "pyproject.toml has no [project.urls]: make release ARGS='--address URL' writes them"
    if f"**{version}**" not in (root / _NOTES).read_text(encoding="utf-8"):
        yield f"{_NOTES} says nothing of the upgrade to **{version}**"
    if not section(root, version):
        yield f"CHANGELOG.md has no section '## [{version}]' with text: rename [Unreleased]"
    if _git(root, "tag", "--list", f"v{version}"):
        yield f"the tag v{version} is there: give pyproject.toml a new version"


def section(root: Path, version: str) -> str:
    """Give what CHANGELOG.md says of a version; empty where it says nothing."""
    text = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    head = rf"^## \[{re.escape(version)}\][^\n]*\n"
    found = re.search(rf"{head}(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return found[1].strip() if found else ""


def write_addresses(root: Path, address: str) -> None:
    """Write [project.urls] of a repository whose forge has GitHub's paths.

    Raises `ValueError` for what is no https address of a repository, or if they are there.
    """
    place = re.fullmatch(r"(?:https://|git@)([\w.-]+)[/:]([\w.-]+/[\w.-]+?)(?:\.git)?/?", address)
    if place is None:
        raise ValueError(f"{address!r} is not like https://forge/owner/name")
    if "urls" in _project(root):
        raise ValueError("pyproject.toml has [project.urls]")
    base = f"https://{place[1]}/{place[2]}"
    lines = [
        "[project.urls]",
        f'Source = "{base}"',
        f'Documentation = "{base}/tree/HEAD/docs"',
        f'Issues = "{base}/issues"',
        f'Changelog = "{base}/blob/HEAD/CHANGELOG.md"',
    ]
    file = root / "pyproject.toml"
    text = file.read_text(encoding="utf-8")
    block = "\n".join(lines)
    file.write_text(text.replace("[project.scripts]", f"{block}\n\n[project.scripts]", 1), "utf-8")


def _project(root: Path) -> dict[str, Any]:
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    project: dict[str, Any] = tomllib.loads(text)["project"]
    return project


def index_of(files: list[Path], folder: Path) -> str:
    """Make a package index of one folder, with these files, and give its URL."""
    place = folder / "simple" / "qframe"
    place.mkdir(parents=True)
    for file in files:
        shutil.copy(file, place)
    links = "".join(f'<a href="{quote(file.name)}">{file.name}</a>\n' for file in files)
    (place / "index.html").write_text(f"<!DOCTYPE html>\n{links}", encoding="utf-8")
    return place.parent.as_uri()


def _git(root: Path, *words: str) -> str:
    command = ["git", "-C", str(root), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip()


def _run(*words: str | Path) -> None:
    print("+", *words, flush=True)
    subprocess.run([str(word) for word in words], check=True, cwd=ROOT)


def _build() -> list[Path]:
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    _run(sys.executable, "-m", "build", "--outdir", "dist")
    files = sorted((ROOT / "dist").iterdir())
    _run(sys.executable, "-m", "twine", "check", "--strict", *files)
    return files


def _try_out(files: list[Path], version: str, dependencies: list[str]) -> None:
    """Install the wheel by its name, run the README from it, and docs/start from the sdist."""
    with tempfile.TemporaryDirectory(prefix="release-") as name:
        folder = Path(name)
        python = folder / "venv" / "bin" / "python"
        _run("sh", "scripts/venv.sh", sys.executable, folder / "venv")
        pip: list[str | Path] = [
            python,
            "-m",
            "pip",
            "install",
            "-qq",
            "--disable-pip-version-check",
        ]
        _run(*pip, "-c", "constraints.txt", *dependencies)
        index = index_of([file for file in files if file.suffix == ".whl"], folder)
        _run(*pip, "--no-deps", "--index-url", index, f"qframe=={version}")
        _run(python, "-m", "pip", "check")
        _run(python, "scripts/run_readme.py", "README.md")
    (sdist,) = (file for file in files if file.suffix == ".gz")
    _run(sys.executable, "-m", "scripts.newcomer", "--sdist", sdist)


def _addressed(address: str) -> int:
    try:
        write_addresses(ROOT, address)
    except ValueError as error:
        print(f"release: {error}", file=sys.stderr)
        return 2
    print("pyproject.toml has [project.urls]: commit it")
    return 0


def main(words: list[str]) -> int:
    """Release the version of pyproject.toml."""
    parser = argparse.ArgumentParser(description="Build, check and tag a release.")
    parser.add_argument("--dry-run", action="store_true", help="do all but the tag")
    parser.add_argument("--address", metavar="URL", help="write [project.urls], and do no more")
    options = parser.parse_args(words)
    dry: bool = options.dry_run
    if options.address is not None:
        return _addressed(options.address)
    project = _project(ROOT)
    version: str = project["version"]
    reasons = list(refusals(ROOT, version))
    for reason in reasons:
        print(f"release: {reason}", file=sys.stderr)
    if reasons and not dry:
        return 2
    try:
        _try_out(_build(), version, project["dependencies"])
        if not dry:
            _run("git", "tag", "-a", f"v{version}", "-m", f"qframe {version}")
    except subprocess.CalledProcessError as error:
        print(f"release: this failed: {' '.join(error.cmd)}", file=sys.stderr)
        return 1
    said = "would be tagged" if dry else f"is tagged: git push origin v{version} publishes it"
    print(f"qframe {version} {said}")
    return 2 if reasons else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
