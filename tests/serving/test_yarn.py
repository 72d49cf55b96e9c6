"""`howdah serve --on yarn` on a real YARN: an application that comes back, found by its file."""

import json
import os
import signal
import sys
import urllib.error
import urllib.request

import pytest

from howdah import storage
from howdah.models.server_file import path_of
from howdah.serving.registry.publish import publish
from tests.runs.finished_runs import LABELS, config_of, finished_run, never
from tests.runs.jobs.yarn_jobs import LIMIT, Jobs
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.hadoop, pytest.mark.full]


@pytest.fixture
def jobs(healthy_cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("HADOOP_CONF_DIR", str(healthy_cluster.conf_dir))
    yield Jobs(healthy_cluster, tmp_path)
    healthy_cluster.end_applications()


def publish_to(url: str, place, base: str, number: int) -> None:
    run = str(place / f"run-{number}")
    finished_run(run, base, run_id=f"run-{number}", answers=LABELS[number % 2])
    publish(config_of(run, f"{url}/models"), never)


def ask(url: str, token: str | None) -> tuple[int, dict]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{url}/v1/classify", b'{"text": "the cat"}', headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def servers(jobs: Jobs, application: str) -> list[int]:
    """Processes of its containers that serve."""
    return [
        pid
        for pid, command in jobs.processes(application).items()
        if "-m howdah.serving" in command and "bash" not in command
    ]


@pytest.mark.parametrize("environment", ["archive", "path"])
def test_a_server_is_found_comes_back_follows_and_ends(
    jobs, hdfs_dir, tmp_path, tiny_model_dir, environment
):
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    os.chmod(token, 0o600)
    publish_to(hdfs_dir, tmp_path, tiny_model_dir, 1)
    yarn = {"python": sys.executable} if environment == "path" else {}
    config = jobs.config(
        {
            "run": {"name": "zoo", "directory": f"{hdfs_dir}/run"},
            "publish": {"directory": f"{hdfs_dir}/models"},
            "yarn": yarn,
        }
    )
    start = ["serve", "--on", "yarn", "--model", "zoo"]
    of_zoo = ["--config", config]
    with_token = [*of_zoo, "--set", f"serve.token_file={token}"]
    secret = token.read_text().strip()

    refused = jobs.json(*start, *of_zoo, code=2)
    assert "would need no token" in refused["what"]
    assert jobs.json("status", "zoo", *with_token, code=5)["error"] == "NotFound"
    started = jobs.json(*start, *with_token)
    application, url = started["application"], started["tracking_url"]
    made = jobs.json("status", "zoo", *with_token)["server"]
    assert made["url"] == url
    assert made["health"]["models"] == [{"model": "zoo", "version": 1, "run_id": "run-1"}]
    assert jobs.json("status", application)["server"]["url"] == url  # by its id alone
    assert ask(url, secret)[1]["prediction"]["label"] == LABELS[1]
    assert ask(url, None)[0] == ask(url, "0123456789abcdef-another")[0] == 401
    assert secret not in json.dumps([started, made]) + str(jobs.processes(application))
    # A second start finds it; it is one of howdah's jobs.
    again = jobs.json(*start, *with_token)
    assert (again["application"], again["attached"]) == (application, True)
    changed = jobs.json(*start, *with_token, "--set", "serve.max_texts=7", code=5)
    assert "another job is using" in changed["what"]
    assert application in [job["application"] for job in jobs.json("ps")["jobs"]]

    # Killed, it comes back in another container, and the file says where.
    [pid] = servers(jobs, application)
    os.kill(pid, signal.SIGKILL)

    def back() -> dict | None:
        state = jobs.json("status", "zoo", *with_token)["server"]
        moved = state["container"] not in (None, made["container"])
        return state if moved and state["health"] else None

    again = wait_until(back, LIMIT)
    assert jobs.json("status", application)["state"] == "RUNNING"
    assert ask(again["url"], secret)[0] == 200
    # It follows the published model.
    publish_to(hdfs_dir, tmp_path, tiny_model_dir, 2)
    wait_until(lambda: ask(again["url"], secret)[1]["version"] == 2, LIMIT)
    assert ask(again["url"], secret)[1]["prediction"]["label"] == LABELS[0]

    # Another token does not believe the file.
    other = tmp_path / "other"
    other.write_text("fedcba9876543210fedcba9876543210\n")
    os.chmod(other, 0o600)
    doubted = jobs.json("status", "zoo", *of_zoo, "--set", f"serve.token_file={other}", code=4)
    assert "not signed with this token" in doubted["what"]

    assert jobs.json("logs", application)["logs"]
    assert jobs.json("kill", "zoo", *of_zoo)["state"] == "KILLED"
    jobs.wait_until_gone(application, LIMIT)
    assert not storage.exists(path_of(f"{hdfs_dir}/models/zoo"))
    assert jobs.json("kill", "zoo", *of_zoo)["state"] == "KILLED"  # again: nothing more to do
    assert jobs.json("status", application)["server"]["url"] is None
