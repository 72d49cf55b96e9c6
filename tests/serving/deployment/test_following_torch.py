"""MLflow's registry follows what is published: a server that is away, aliases, what is loaded."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from howdah import storage
from howdah.core.child import Child
from howdah.core.processes import session_members
from tests import ROOT
from tests.runs.finished_runs import finished_run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.full

TEXTS = ["the cat", "a dog and the cat"]


class Place:
    """A directory with runs, models/ and an MLflow server that is or is not there."""

    def __init__(self, directory: Path, model: str) -> None:
        self.directory, self.model = directory, model
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"

    def howdah(self, *words: str, **env: str) -> dict:
        return answer_of(self.begin(*words, **env))

    def begin(self, *words: str, **env: str) -> subprocess.Popen:
        """The same command, running."""
        return subprocess.Popen(
            [sys.executable, "-m", "howdah.cli", *words, "--json"], cwd=self.directory,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_DISABLE_TELEMETRY": "true", **env},
        )  # fmt: skip

    def run(self, name: str, accuracy: float = 0.9) -> str:
        """Make a finished run; the path of its configuration."""
        run = finished_run(
            str(self.directory / name), self.model, run_id=name, accuracy=accuracy
        )  # fmt: skip
        held = {
            "run": {"name": "zoo", "directory": run},
            "publish": {"directory": str(self.directory / "models"),
                        "mlflow": {"mode": "reference"}},
            "tracking": {"mlflow": {"uri": self.uri}},
            "gate": {"minimum": {"accuracy": 0.5}},
        }  # fmt: skip
        path = self.directory / f"{name}.yaml"
        path.write_text(yaml.safe_dump(held))
        return str(path)

    def server(self) -> Child:
        argv = [
            sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port",
            str(self.port), "--workers", "1", "--backend-store-uri",
            f"sqlite:///{self.directory}/mlflow.db", "--artifacts-destination",
            str(self.directory / "artifacts"),
        ]  # fmt: skip
        env = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
        return Child(argv, env=env, cwd=self.directory, output=self.directory / "server.log",
                     grace=20)  # fmt: skip

    def up(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False


def answer_of(command: subprocess.Popen) -> dict:
    stdout, stderr = command.communicate(timeout=300)
    assert "Traceback" not in stderr, stderr
    return json.loads(stdout) | {"code": command.returncode, "stderr": stderr}


@contextlib.contextmanager
def stopped(server: Child) -> Iterator[None]:
    """The server takes connections and answers nothing."""
    members = session_members(server.pid)
    for pid in members:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in members:
            os.kill(pid, signal.SIGCONT)


def aliases(client) -> dict[str, int]:
    return {
        name: int(version) for name, version in client.get_registered_model("zoo").aliases.items()
    }


@pytest.mark.timeout(900)
def test_the_registry_follows(tmp_path, tiny_model_dir, monkeypatch):
    place = Place(tmp_path, tiny_model_dir)
    root = str(tmp_path / "models" / "zoo")
    one, two, three = place.run("one"), place.run("two", 0.95), place.run("three", 0.6)
    # The server is away: published all the same.
    made = place.howdah("publish", "-c", one, "--note", "approved by Anna")
    assert (made["code"], made["current"], made["mlflow"]["state"]) == (0, 1, "behind"), made
    assert "howdah model register" in made["stderr"]
    refused = place.howdah("model", "register", "-c", one)
    assert (refused["code"], "registry" in refused["what"]) == (5, True)

    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow
    import pandas as pd

    mlflow.set_tracking_uri(place.uri)
    mlflow.set_registry_uri(place.uri)
    client = mlflow.MlflowClient(place.uri, place.uri)
    with place.server() as server:
        wait_until(place.up, 300)
        # ... and completed, once.
        done = place.howdah("model", "register", "-c", one)
        assert (done["code"], done["added"], done["champion"]) == (0, [1], 1), done
        assert place.howdah("model", "register", "-c", one)["added"] == []
        assert aliases(client) == {"champion": 1}
        tags = client.get_model_version_by_alias("zoo", "champion").tags
        assert {k: tags[f"howdah.{k}"] for k in ("version", "path", "gate", "approved_by")} == {
            "version": "1", "path": f"{root}/v=1", "gate": "passed",
            "approved_by": "approved by Anna",
        }  # fmt: skip
        # Published, published, rolled back: the alias is where the files say.
        made = place.howdah("publish", "-c", two)
        assert made["mlflow"]["champion"] == 2 and aliases(client) == {"champion": 2}
        made = place.howdah("publish", "-c", three)
        assert made["mlflow"]["champion"] == 3 and aliases(client) == {"champion": 3}
        assert place.howdah("publish", "-c", two, "--version", "1")["current"] == 1
        assert aliases(client) == {"champion": 1}
        assert len(client.search_model_versions("name = 'zoo'")) == 3

        # What MLflow loads predicts what `howdah predict` does, and is no copy of the weights.
        (tmp_path / "in.csv").write_text("id,text\n" + "".join(f"{t},{t}\n" for t in TEXTS))
        made = place.howdah("predict", "--model", root, "--source", str(tmp_path / "in.csv"),
                            "--output", str(tmp_path / "out.jsonl"))  # fmt: skip
        assert (made["model"], made["version"]) == (root, 1)
        rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        loaded = mlflow.pyfunc.load_model("models:/zoo@champion")
        answers = loaded.predict(pd.DataFrame({"text": TEXTS}))
        assert answers.label.tolist() == [row["label"] for row in rows]
        for n, row in enumerate(rows):
            listed = list(row["scores"].values())
            assert answers.scores[n] == pytest.approx(listed, abs=1e-6)
        local = Path(mlflow.artifacts.download_artifacts("models:/zoo@champion"))
        kept = {path.name: path.stat().st_size for path in local.rglob("*") if path.is_file()}
        assert "reference.json" in kept and "howdah.json" in kept
        assert not [name for name in kept if name.endswith(".safetensors")]

        # An alias that was moved by hand publishes nothing, and goes back.
        client.set_registered_model_alias("zoo", "champion", "2")
        assert place.howdah("model", "register", "-c", one)["champion"] == 1
        assert storage.read_json(f"{root}/current.json")["version"] == 1
        assert aliases(client) == {"champion": 1}
        client.delete_registered_model_alias("zoo", "champion")
        assert place.howdah("model", "register", "-c", one)["added"] == []
        assert aliases(client) == {"champion": 1}
        lineage = place.howdah("model", "lineage", "--model", f"{root}@2")
        assert lineage["mlflow"]["version"] == 2
        server.end(signal.SIGINT, 20)


@pytest.mark.timeout(900)
def test_an_alias_is_behind_until_the_next_command_and_no_version_is_there_twice(
    tmp_path, tiny_model_dir, monkeypatch
):
    place = Place(tmp_path, tiny_model_dir)
    current = tmp_path / "models" / "zoo" / "current.json"
    one, two, three, four, five = map(place.run, ("one", "two", "three", "four", "five"))
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow

    client = mlflow.MlflowClient(place.uri, place.uri)

    def published() -> int:
        return json.loads(current.read_text())["version"]

    with place.server() as server:
        wait_until(place.up, 300)
        assert place.howdah("publish", "-c", one)["mlflow"]["champion"] == 1
        # Killed between the pointer and the alias.
        with stopped(server):
            publishing = place.begin("publish", "-c", two)
            wait_until(lambda: published() == 2, 120)
            publishing.kill()
            publishing.communicate()
        assert (published(), aliases(client)) == (2, {"champion": 1})
        # The next command is another publication, to a server that answers too late ...
        hurry = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "2", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
        with stopped(server):
            made = place.howdah("publish", "-c", three, **hurry)
        assert (made["code"], made["current"], made["mlflow"]["state"]) == (0, 3, "behind"), made
        assert (published(), aliases(client)["champion"]) == (3, 1)
        # ... then one that changes nothing but this.
        again = place.howdah("publish", "-c", three)
        assert (again["changed"], again["mlflow"]["champion"]) == (False, 3), again
        assert again["mlflow"]["added"] == [2, 3]
        # Two at once: whichever is current has the alias.
        both = [place.begin("publish", "-c", path) for path in (four, five)]
        done = [answer_of(command) for command in both]
        assert [(each["code"], each["mlflow"]["state"]) for each in done] == [(0, "registered")] * 2
        theirs = client.get_model_version_by_alias("zoo", "champion")
        assert theirs.tags["howdah.version"] == str(published()) and published() in (4, 5)
        counted = Counter(
            each.tags["howdah.version"] for each in client.search_model_versions("name = 'zoo'")
        )
        assert counted == dict.fromkeys("12345", 1)
        server.end(signal.SIGINT, 20)
