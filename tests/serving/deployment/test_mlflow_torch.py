"""`howdah model register`: a published version, loaded and served by MLflow."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from howdah.core.child import Child
from howdah.serving.registry.publish import publish
from tests import ROOT
from tests.runs.finished_runs import LABELS, config_of, finished_run, never
from tests.support.waiting import wait_until

pytestmark = pytest.mark.full

TEXTS = ["the cat", "a dog and the cat", ""]


def not_json(constant: str) -> None:
    """For a parser as strict as other languages' are: NaN and Infinity are not JSON."""
    raise AssertionError(f"{constant} is not JSON")


def howdah(place: Path, *words: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-m", "howdah.cli", *words, "--json"], cwd=place, capture_output=True,
        text=True, timeout=200, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    answer = json.loads(done.stdout)
    return answer | {"code": done.returncode, "stderr": done.stderr}


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_model_dir) -> Path:
    """A directory with a published model below models/."""
    place = tmp_path_factory.mktemp("registry")
    finished_run(str(place / "run"), tiny_model_dir, run_id="run-1")
    publish(config_of(str(place / "run"), str(place / "models")), never)
    return place


def test_a_version_is_registered_once_loaded_and_served(place, monkeypatch):
    uri = f"sqlite:///{place}/registry.db"
    words = ["model", "register", "--model", "zoo", "--set", "publish.directory=models", "--set",
             f"tracking.mlflow.uri={uri}", "--set", "publish.name=zoo", "--alias"]  # fmt: skip
    made = howdah(place, *words, "next")
    assert (made["code"], made["version"], made["changed"]) == (0, 1, True), made
    again = howdah(place, *words, "champion")
    assert (again["version"], again["changed"], again["alias"]) == (1, False, "champion")

    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow
    import pandas as pd

    from howdah.models.opened.opened import open_model

    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    client = mlflow.MlflowClient(uri, uri)
    version = client.get_model_version_by_alias("zoo", "champion")
    assert version.tags["howdah.run_id"] == "run-1"
    assert version.tags["howdah.published"] == "zoo v=1"
    assert client.get_model_version_by_alias("zoo", "next").version == version.version

    loaded = mlflow.pyfunc.load_model("models:/zoo@champion")
    answers = loaded.predict(pd.DataFrame({"text": TEXTS}))
    expected = open_model(str(place / "run")).scores(TEXTS[:2])
    for row in (0, 1):
        assert answers.scores[row] == pytest.approx(expected[row].tolist(), abs=2e-6)
        assert answers.label[row] == LABELS[int(expected[row].argmax())]
    assert answers.error.tolist() == [None, None, "the text is empty"]
    local = Path(mlflow.artifacts.download_artifacts("models:/zoo@champion"))
    names = [path.name for path in local.rglob("*") if path.is_file()]
    assert "pyfunc_model.py" in names and "model.safetensors" in names
    assert not [name for name in names if name.endswith((".pkl", ".pickle", ".joblib"))]

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    argv = [sys.executable, "-m", "mlflow", "models", "serve", "-m", "models:/zoo@champion",
            "--env-manager", "local", "-h", "127.0.0.1", "-p", str(port)]  # fmt: skip
    env = {**os.environ, "MLFLOW_TRACKING_URI": uri, "MLFLOW_REGISTRY_URI": uri,
           "PYTHONPATH": str(ROOT),
           "PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]}  # fmt: skip
    with Child(argv, env=env, cwd=place, output=place / "serve.log", grace=20) as server:

        def up():
            assert server.alive, (place / "serve.log").read_text()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=5) as answer:
                    return answer.status == 200
            except OSError:
                return False

        wait_until(up, 200)
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/invocations",
            data=json.dumps({"dataframe_records": [{"text": text} for text in TEXTS]}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            served = json.load(answer, parse_constant=not_json)["predictions"]
        server.end(signal.SIGINT, 20)
    assert [one["label"] for one in served] == [*answers.label[:2], None]
    assert served[0]["scores"] == pytest.approx(answers.scores[0])
    assert (served[2]["score"], served[2]["scores"]) == (None, None)


def test_what_cannot_be_registered_is_refused(place):
    directory = ["model", "register", "--set", "publish.directory=models", "--model", "zoo"]
    done = howdah(place, *directory)
    assert (done["code"], "no MLflow registry" in done["what"]) == (2, True)
    done = howdah(
        place, *directory, "--set", "tracking.mlflow.uri=sqlite:////proc/none/registry.db"
    )
    assert (done["code"], "registry cannot be used" in done["what"]) == (5, True)
    assert "Traceback" not in done["stderr"]
