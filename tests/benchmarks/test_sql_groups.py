"""The groups of SQL servers run and report every measure, also of who is not here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import environments
from benchmarks.peers.sql_sides import PACKAGES, PEERS
from benchmarks.places import Place
from benchmarks.sql.bench import ours
from benchmarks.sql.mariadb import MariadbServer
from benchmarks.sql.postgres import PostgresServer
from benchmarks.sql.server import SqlServer
from tests.support.server_process import binary

REPOSITORY = Path(__file__).resolve().parents[2]
_SERVERS: dict[str, type[SqlServer]] = {"postgres": PostgresServer, "mariadb": MariadbServer}
_OURS = {
    "drain by four, and by one",
    "drain, processor time per job",
    "bulk of 200",
    *(
        f"{what}, {kind} per job"
        for what in ("dispatch", "bulk", "drain")
        for kind in ("statements", "commits", "syncs of the log")
    ),
    "dispatch to start, idle worker, median",
    "dispatch to start, idle worker, p95",
    "idle worker, of one core",
    "worker's memory, PSS",
    "drain at 2,000 waiting, at 200",
    "drain behind 500 dead rows of an open transaction, and without",
}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform != "linux", reason="memory and CPU time are read from /proc")
@pytest.mark.parametrize("group", ["postgres"])  # the other takes as many minutes
def test_every_measure_is_reported_and_so_is_who_is_not_here(group: str, tmp_path: Path) -> None:
    _here(group)
    file, server = tmp_path / "raw.json", _SERVERS[group]

    command = [sys.executable, "-m", "benchmarks", group, "--quick", "--alone"]
    done = subprocess.run(
        [*command, "--json", str(file)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=580, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    found = {row["measure"]: row for row in json.loads(file.read_text())["groups"][group]}
    absent = {measure for measure, row in found.items() if row["peer"] == "left out"}
    peers = [peer for peer in PEERS if server.name in peer.servers]
    assert len(absent) == 2 * len(peers) + sum(peer.first for peer in peers)
    bare = {measure for measure in found if server.bare in measure}
    assert len(bare) == 3
    none = {measure for measure, row in found.items() if row["peer"] == "none of them is here"}
    assert set(found) - absent - bare - none == _OURS
    assert all(found[measure]["ours"] for measure in _OURS | bare)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("group", _SERVERS)
def test_the_bare_statements_and_the_rows_filled_in_fit_our_table(group: str) -> None:
    _here(group)
    with _SERVERS[group]() as server, Place(ours(server.our_url())) as place:
        place.prepare()
        place.produce("many", 0)
        server.leave_dead(10)
        assert [*map(int, *server.ask("SELECT count(*) FROM jobs"))] == [1]

        server.fill(19)
        assert server.bare_inserts(2, 4) > 0
        assert server.bare_claims(2, 4) > 0
        before = server.work()
        assert place.drain(20).rate > 0

        assert server.work().since(before, 20).statements > 0
        assert place.written() == 20


@pytest.mark.parametrize("peer", PACKAGES)
def test_every_peer_is_pinned(peer: str) -> None:
    pinned = environments.pinned(peer)

    assert PACKAGES[peer] in pinned
    assert all(version[0].isdigit() for version in pinned.values())


def _here(group: str) -> None:
    if group == "postgres":
        binary("postgres", *Path("/usr/lib/postgresql").glob("*/bin"))
    else:
        binary("mariadbd", Path("/usr/sbin"))
