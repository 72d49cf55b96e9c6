"""`python -m howdah.serving` in a container's directory, from the environment that is
shipped and nothing else: the node has glibc alone."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import urllib.request

import pytest
import yaml

from howdah.core.processes import LIMITS as VARIABLE
from howdah.models import server_file
from howdah.models.server_file import ADDRESS_VARIABLE, MODEL_VARIABLE, TOKENS
from howdah.packaging import package
from howdah.serving import container as server_in_container
from tests import ROOT
from tests.runs.servers import LIMIT, publish_version
from tests.support.waiting import wait_until

TOKEN = "0123456789abcdef0123456789abcdef"


def container(place, base: str) -> dict[str, str]:
    """The directory `place`/container as YARN makes it; the variables of its process."""
    publish_version(place, base, 1)
    work = place / "container"
    work.mkdir()
    sections = {"publish": {"directory": f"{place}/models"}}
    (work / "run.yaml").write_text(yaml.safe_dump(sections))
    (work / TOKENS).write_text(TOKEN + "\n")
    os.chmod(work / TOKENS, 0o500)
    model = f"{place}/models/zoo"
    return {
        MODEL_VARIABLE: model, ADDRESS_VARIABLE: server_file.path_of(model), "NM_HOST": "127.0.0.1",
        VARIABLE: json.dumps({"reload_seconds": 0.2}),
        "CONTAINER_ID": "container_e17_1410901177871_0001_02_000005", "HOME": str(work),
        "HOWDAH_CACHE": str(work / "cache"), "PATH": "/usr/bin:/bin",
    }  # fmt: skip


def serve_and_end(python: str, code: str, place, env: dict[str, str]) -> None:
    work = place / "container"
    with open(work / "log", "w") as log:
        process = subprocess.Popen(
            [python, "-m", "howdah.serving"], cwd=work, env={**env, "PYTHONPATH": code}, stderr=log,
        )  # fmt: skip
    try:
        wait_until(
            lambda: os.path.exists(env[ADDRESS_VARIABLE]) or process.poll() is not None, LIMIT
        )
        assert process.poll() is None, (work / "log").read_text()
        address = server_file.read(env[ADDRESS_VARIABLE], [TOKEN.encode()])
        assert address.application == "application_1410901177871_0001"
        assert address.container == env["CONTAINER_ID"]
        request = urllib.request.Request(
            f"{address.url}/v1/classify", b'{"text": "the cat"}',
            {"Authorization": f"Bearer {TOKEN}"},
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=LIMIT) as answer:
            assert json.load(answer)["run_id"] == "run-1"
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT) == 143
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in (work / "log").read_text()


def test_a_container_says_where_it_serves(tmp_path, base):
    env = container(tmp_path, base)
    serve_and_end(sys.executable, str(ROOT), tmp_path, env)


def test_a_container_keeps_the_limits_of_drift(tmp_path, base, monkeypatch):
    for name, value in container(tmp_path, base).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path / "container")
    with open("run.yaml", "a") as file:
        file.write("drift: {psi: 0.35}\n")
    settings = []
    monkeypatch.setattr(server_in_container, "serve", lambda *_, **more: settings.append(more))
    monkeypatch.setattr(server_in_container.storage, "configure", lambda **_: None)
    monkeypatch.setattr(server_in_container.storage, "be_patient", lambda: None)
    assert server_in_container.main() == 0
    assert settings[0]["limits"].psi == 0.35


@pytest.mark.full
def test_the_environment_that_is_shipped_has_all_that_the_server_needs(tmp_path, base):
    env = container(tmp_path, base)
    made = package.environment("serve", str(tmp_path))
    assert made.size < 170 * 2**20
    with tarfile.open(made.path) as archive:
        archive.extractall(tmp_path / "environment", filter="data")
    wheel = package.wheel(str(tmp_path)).path
    serve_and_end(str(tmp_path / "environment" / "bin" / "python"), wheel, tmp_path, env)
