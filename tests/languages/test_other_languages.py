"""Node, PHP, Ruby and curl dispatch as the page says, also across a restart of Redis."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qframe.payload.signature import Signer
from tests.support.pages import docs_page
from tests.support.process import Project, wait_for
from tests.support.projects import RedisProject
from tests.support.redis_server import RedisServer
from tests.web.test_command import address_of

ROOT = Path(__file__).parents[2]
PAGES = "\n".join(
    docs_page(name).read_text() for name in ("other-languages.md", "pushing-payloads.md")
)
NODE = ROOT / "clients" / "node" / "qframe.mjs"
CASES = json.loads((ROOT / "clients" / "vectors.json").read_text())["cases"]
KEY, TOKEN = "a signing key of the whole system", "a-token-of-another-language"

PRINTS = {
    "node": (
        f'import {{ signed }} from "file://{NODE}";'
        'import { readFileSync } from "node:fs";'
        "process.stdout.write(signed(readFileSync(0, 'utf8'), ...process.argv.slice(-2)));"
    ),
    "php": (
        "<?php require 'payload.php';"
        "echo qframe_signed(stream_get_contents(STDIN), $argv[1], $argv[2]);"
    ),
    "ruby": (
        "Encoding.default_external = 'UTF-8'; require './payload.rb';"
        "print Qframe.signed(STDIN.read, *ARGV.map { |e| e.dup.force_encoding('UTF-8') })"
    ),
}
ENDS = {"node": "mjs", "php": "php", "ruby": "rb"}


def installed(name: str) -> str:
    """Find a program; without it the test is skipped, or fails where `CI` is set."""
    found = shutil.which(name)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"{name} is not installed: make services")
        pytest.skip(f"{name} is not installed")
    return found


def write_blocks(folder: Path) -> None:
    for name, code in re.findall(r"```\w+ file=(\S+)\n(.*?)```", PAGES, re.DOTALL):
        (folder / name).write_text(code)


def run(folder: Path, language: str, program: str, *words: str, given: str = "") -> str:
    file = folder / f"program.{ENDS[language]}"
    file.write_text(program)
    done = subprocess.run(
        [installed(language), str(file), *words],
        input=given.encode(),
        capture_output=True,
        timeout=90,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["says"])
def test_what_is_signed_is_what_a_worker_takes(case: dict[str, str]) -> None:
    raw, made = case["payload"].encode(), case["signed"].encode()
    assert Signer([case["key"]]).signed(raw, case["queue"]) == made
    Signer([case["key"]]).check(made, case["queue"])


@pytest.mark.parametrize("language", ["node", "php", "ruby"])
def test_each_language_signs_the_same(language: str, tmp_path: Path) -> None:
    write_blocks(tmp_path)
    for case in CASES:
        given = case["payload"]
        out = run(tmp_path, language, PRINTS[language], case["queue"], case["key"], given=given)
        assert out == case["signed"]


JOBS = """
from qframe import Queueable

class Note(Queueable):
    by: str

    def handle(self) -> None:
        print("noted", self.by)
"""
SETTINGS = f"""
signing_key = "{KEY}"

[web.dispatch]
jobs = ["jobs.Note"]
tokens = {{ other = "{TOKEN}" }}
"""


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis", fsync="always") as server:
        yield server


def test_each_dispatches_once_across_a_restart_of_redis(kept: RedisServer, tmp_path: Path) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    with RedisProject(folder, driver="redis", url=kept.url) as project:
        project.write("jobs.py", JOBS)
        project.configure(SETTINGS, driver="redis", url=kept.url)
        write_blocks(folder)
        address = address_of(project.start("web", "--port", 0))
        kept.stop()
        waiting = [
            subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            for words in programs(folder, address, kept)
        ]
        wait_for(lambda: all(each.poll() is None for each in waiting), "all to be waiting")
        kept.start()
        for each in waiting:
            out, err = each.communicate(timeout=90)
            assert each.returncode == 0, (each.args, out, err)
        ran = project.qframe("work", "--queue", "default", "--stop-when-empty")
        noted = sorted(re.findall(r"noted (\S+)", ran.out))
        assert noted == ["curl", "node-http", "node-redis", "php-http", "php-redis"], ran.out


def programs(folder: Path, address: str, server: Any) -> list[list[str]]:
    """Give commands that dispatch one job each, the first ones twice with one key."""
    http = f'new HttpClient("{address}", "{TOKEN}", {{ patience: 80 }})'
    (folder / "both.mjs").write_text(
        f"""
        import {{ HttpClient, RedisClient }} from "file://{NODE}";
        const http = {http};
        for (const _ of [1, 2]) {{
            await http.dispatch("jobs.Note", {{ by: "node-http" }}, {{ key: "node" }});
        }}
        const own = new RedisClient("{server.url}", {{ signingKey: "{KEY}", patience: 80 }});
        await own.dispatch("jobs.Note", {{ by: "node-redis" }});
        """
    )
    (folder / "both.php").write_text(
        f"""<?php
        require 'http.php';
        require 'payload.php';
        foreach ([1, 2] as $_) {{
            qframe_dispatch('{address}', '{TOKEN}', 'jobs.Note', ['by' => 'php-http'], 'php', 80);
        }}
        $redis = new Redis();
        $redis->connect('127.0.0.1', {server.port});
        $raw = qframe_payload('jobs.Note', ['by' => 'php-redis']);
        qframe_push($redis, qframe_signed($raw, 'default', '{KEY}'), 'default');
        """
    )
    body = '{"job": "jobs.Note", "data": {"by": "curl"}}'
    curl = ["--silent", "--show-error", "--fail", "--retry", "40", "--retry-all-errors"]
    headers = ["-H", f"Authorization: Bearer {TOKEN}", "-H", "Idempotency-Key: curl"]
    return [
        [installed("node"), "both.mjs"],
        [installed("php"), "both.php"],
        [installed("curl"), *curl, *headers, "-d", body, f"{address}/api/v1/jobs"],
    ]


def test_a_dispatch_that_is_refused_is_not_repeated(project_web: str, tmp_path: Path) -> None:
    out = run(
        tmp_path,
        "node",
        f"""
        import {{ HttpClient, Refused }} from "file://{NODE}";
        const queue = new HttpClient("{project_web}", "{TOKEN}");
        try {{
            await queue.dispatch("jobs.Note", {{ by: 7 }});
        }} catch (error) {{
            console.log(error instanceof Refused, error.problem.errors[0].loc.join("."));
        }}
        """,
    )
    assert out == "true data.by\n"


@pytest.fixture
def project_web(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "app"
    folder.mkdir()
    with Project(folder, driver="database") as project:
        project.write("jobs.py", JOBS)
        project.configure(SETTINGS, driver="database")
        yield address_of(project.start("web", "--port", 0))
