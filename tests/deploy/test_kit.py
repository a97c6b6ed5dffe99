"""What is in `deploy/`, as systemd, Compose and Helm read it, and its commands as qframe does."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from qframe.console.app import app

KIT = Path(__file__).parents[2] / "deploy"
VENDORS = Path(sys.prefix) / "vendors"
"""What `make test-all` installs apart."""
RENDER = """
import json, sys
import helm_python, kubernetes_validate, yaml

chart, values = sys.argv[1], json.loads(sys.argv[2])
report = helm_python.lint(chart, values, strict=True)
lint = [each["error"] for each in report["messages"] if each["severity"] > 1]
with helm_python.Chart.load(chart) as loaded:
    found = loaded.render(values, name="shop", namespace="prod")
rendered = []
for name, text in found.items():
    for each in yaml.safe_load_all(text) if name.endswith(".yaml") else ():
        if each and not each["apiVersion"].startswith("keda.sh/"):
            kubernetes_validate.validate(each, "1.33", strict=True)
        rendered += [each] if each else []
print(json.dumps({"lint": lint + report["errors"], "rendered": rendered}))
"""
VALUES: dict[str, Any] = {
    "image": {"repository": "registry.example/shop", "tag": "1"},
    "web": {"tokenSecret": {"name": "qframe"}},
    "envFrom": [{"secretRef": {"name": "qframe"}}],
    "workers": {
        "default": {"keda": {"enabled": True, "jobsPerReplica": 20}},
        "mail": {
            "queue": "mail-*:5,high",
            "connection": "redis",
            "timeout": 600,
            "processes": 4,
            "concurrency": 20,
            "args": ["--memory", 512],
            "keda": {"enabled": True, "queue": "mail-slow"},
            "resources": {"requests": {"memory": "512Mi"}},
        },
    },
}


@pytest.fixture
def vendors() -> Path:
    if not VENDORS.exists() and "CI" not in os.environ:
        pytest.skip("`make test-all` installs what is needed")
    return VENDORS


def check(words: list[str]) -> None:
    """Fail unless qframe takes these options."""
    name, command, *given = words
    assert name.rpartition("/")[2] == "qframe"
    group = get_command(app)
    commands = group.commands  # type: ignore[attr-defined] # it is a group
    with commands[command].make_context(command, given):
        pass


# -- systemd --------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    program = tmp_path / "srv" / "qframe"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    units = []
    for each in sorted((KIT / "systemd").iterdir()):
        text = each.read_text().replace("/srv/app/.venv/bin/qframe", str(program))
        made = tmp_path / each.name.replace("@", "@1")
        made.write_text(re.sub("User=.*\n|WorkingDirectory=.*\n", "", text).replace("%i", "1"))
        units.append(made.rename(tmp_path / each.name.replace("@", "-one")))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *units],
        capture_output=True,
        text=True,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "qframe" in line]
    assert (ours, done.returncode) == ([], 0)


def test_qframe_takes_the_commands_of_the_units() -> None:
    texts = [each.read_text() for each in (KIT / "systemd").iterdir()]
    commands = [
        shlex.split(found)
        for text in texts
        for found in re.findall(r"/srv/\S+/qframe [^|\n]*", text)
    ]
    assert len(commands) == 3
    for each in commands:
        check(each)


def test_the_health_of_a_unit_is_asked_where_it_is_written() -> None:
    written, asked = (
        re.search(r"--health-file (\S+)", (KIT / "systemd" / name).read_text())
        for name in ("qframe@.service", "qframe-health@.service")
    )
    assert written is not None
    assert asked is not None
    assert written[1] == asked[1] == "%t/qframe/%i/health"
    assert "RuntimeDirectory=qframe/%i\n" in (KIT / "systemd" / "qframe@.service").read_text()


# -- Compose --------------------------------------------------------------------------------------


def composed(vendors: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [vendors / "bin" / "docker-compose", "config", "--format", "json"],
        cwd=KIT / "compose",
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow  # its tool is installed apart
def test_compose_takes_the_file(vendors: Path) -> None:
    done = composed(vendors, QFRAME_WEB__TOKEN="t" * 16)
    assert (done.returncode, done.stderr) == (0, "")
    services = json.loads(done.stdout)["services"]
    assert {*services} == {"redis", "worker", "web"}
    worker = services["worker"]
    assert worker["healthcheck"]["test"] == ["CMD", "qframe", "health", "--live"]
    folder, _, _ = worker["tmpfs"][0].partition(":")
    assert worker["environment"]["QFRAME_HEALTH_FILE"].startswith(f"{folder}/")
    assert worker["environment"]["QFRAME_DEFAULT"] == "redis"
    check(worker["command"])
    check(worker["healthcheck"]["test"][1:])
    check(services["web"]["command"])
    refused = composed(vendors)
    assert refused.returncode != 0
    assert "QFRAME_WEB__TOKEN" in refused.stderr


# -- Helm -----------------------------------------------------------------------------------------


def helmed(vendors: Path, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", RENDER, str(KIT / "helm" / "qframe"), json.dumps(values)],
        env={**os.environ, "PYTHONPATH": str(vendors)},
        capture_output=True,
        text=True,
        check=False,
    )


def containers(rendered: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for each in rendered:
        if each["kind"] == "Deployment":
            pod = each["spec"]["template"]["spec"]
            yield each, pod["containers"][0]


@pytest.mark.slow  # its tools are installed apart
def test_helm_and_kubernetes_take_the_chart(vendors: Path) -> None:
    done = helmed(vendors, VALUES)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["lint"] == []
    rendered = found["rendered"]
    named = {(each["kind"], each["metadata"]["name"]): each for each in rendered}
    assert {*named} == {
        ("Deployment", "shop-qframe-default"),
        ("Deployment", "shop-qframe-mail"),
        ("Deployment", "shop-qframe-web"),
        ("Service", "shop-qframe-web"),
        ("ScaledObject", "shop-qframe-default"),
        ("ScaledObject", "shop-qframe-mail"),
        ("TriggerAuthentication", "shop-qframe-web"),
    }
    for deployment, container in containers(rendered):
        check(container["args"])
        if "work" in container["args"]:
            assert "replicas" not in deployment["spec"], "KEDA decides"
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                check(container[probe]["exec"]["command"])
            (folder, _) = (each["mountPath"] for each in container["volumeMounts"])
            (variable,) = container["env"]
            assert variable == {"name": "QFRAME_HEALTH_FILE", "value": f"{folder}/health"}
    mail = named["Deployment", "shop-qframe-mail"]["spec"]["template"]["spec"]
    assert mail["terminationGracePeriodSeconds"] == 615
    assert mail["containers"][0]["args"][2:5] == ["redis", "--queue", "mail-*:5,high"]
    (trigger,) = named["ScaledObject", "shop-qframe-mail"]["spec"]["triggers"]
    assert trigger["metadata"] == {
        "url": "http://shop-qframe-web.prod.svc:8470/api/scale?queue=mail-slow&connection=redis",
        "valueLocation": "needed",
        "targetValue": "10",
        "authMode": "bearer",
    }


@pytest.mark.slow  # as above
@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"image": {"repository": "", "tag": "1"}}, "repository"),
        ({"workers": {"default": {"timout": 3}}}, "timout"),
        ({"web": {"enabled": True}}, "web.tokenSecret.name"),
        ({"web": {"enabled": False}}, "web.enabled must be true"),
        ({"workers": {"default": {"queue": "a,b", "keda": {"enabled": True}}}}, "one queue"),
        ({"workers": {"a_b": {}}}, "a_b"),
    ],
)
def test_wrong_values_are_refused(vendors: Path, values: dict[str, Any], why: str) -> None:
    done = helmed(vendors, VALUES | values)
    assert done.returncode != 0
    assert why in done.stderr
