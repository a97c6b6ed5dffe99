from __future__ import annotations

import zipfile

from tests.console.conftest import Shop


def test_an_archive_is_written(shop: Shop) -> None:
    said = shop.run("doctor", "-o", "made.zip", "--json")
    assert said.code == 0, said
    assert (said.rows["file"], said.rows["unread"]) == ("made.zip", {})
    path = shop.root / "made.zip"
    assert path.stat().st_mode & 0o777 == 0o600
    assert sorted(zipfile.ZipFile(path).namelist()) == ["report.html", "report.json"]
    again = shop.run("doctor", "-o", "made.zip")
    assert (again.code, again.only()) == (2, "qframe: made.zip cannot be written: File exists")
    assert shop.run("doctor", "-o", "no/where.zip").code == 2


def test_a_wrong_configuration_is_in_the_archive(shop: Shop) -> None:
    shop.write("qframe.toml", 'defualt = "redis://:hidden@h"\n')
    said = shop.run("doctor", "-o", "made.zip")
    assert said.code == 1
    assert "not read  configuration: " in said.out
    page = zipfile.ZipFile(shop.root / "made.zip").read("report.html").decode()
    assert "defualt" in page
    assert "hidden" not in page + said.out
