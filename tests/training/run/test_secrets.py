"""A real training whose configuration has a secret of each sort: nothing that it leaves has one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from howdah import redact
from howdah.config.loader import load
from tests.config.test_redact import SECRETS
from tests.runs.training_runs import ROOT, SETTINGS, _nested

SECONDS = 240
"""Detects a hang."""


def files_with(directory, *secrets: bytes) -> list[str]:
    """Files below a directory that have any of these bytes in them."""
    paths = []
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                data = file.read()
            if any(secret in data for secret in secrets):
                paths.append(path)
    return paths


@pytest.fixture
def howdah(tmp_path, tiny_dataset, tiny_model_dir):
    """Runs `howdah WORDS --config FILE` with secrets; gives exit code and output."""
    pytest.importorskip("mlflow")
    (tmp_path / "tmp").mkdir()
    values = SETTINGS | {
        "run.directory": str(tmp_path / "run"), "data.dataset": tiny_dataset.path,
        "model.base": tiny_model_dir, "training.framework": "torch", "training.max_steps": 4,
        "tracking.tensorboard": True, "tracking.mlflow.uri": f"sqlite:///{tmp_path}/mlflow.db",
        "data.source": SECRETS["data.source"][0], "data.spark.conf": SECRETS["data.spark.conf"],
        "job.env": SECRETS["job.env"], "yarn.files": SECRETS["yarn.files"],
        "tracking.wandb": "news",
    }  # fmt: skip
    config_file = tmp_path / "given.yaml"
    env = os.environ | {
        "TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": ROOT, "CUDA_VISIBLE_DEVICES": "",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "WANDB_MODE": "offline",
    }  # fmt: skip

    def run(*words, config=None, **settings):
        config_file.write_text(json.dumps(_nested(values | settings)))
        done = subprocess.run(
            [sys.executable, "-m", "howdah.cli", *words, "--config", str(config or config_file)],
            cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=SECONDS,
        )  # fmt: skip
        return done.returncode, done.stdout

    return run


@pytest.mark.timeout(600)
def test_what_a_run_leaves_has_no_secret(howdah, tmp_path):
    code, output = howdah("train")
    assert code == 0, output
    run = tmp_path / "run"
    assert run.stat().st_mode & 0o777 == 0o750
    for name in ("config.yaml", "report.html", "export/howdah.json", "logs/rank.0", "run.json"):
        assert (run / name).exists(), name
    assert list(run.glob("checkpoints/step-*/meta.json")) and list(run.glob("wandb/*/*.wandb"))
    assert "planted" not in output
    assert files_with(run, b"planted") == []
    database = (tmp_path / "mlflow.db").read_bytes()
    assert b"planted" not in database and redact.LEFT_OUT.encode() in database
    assert files_with(tmp_path / "tmp", b"planted") == []
    # What was written down lacks them, and is refused where they are needed, by their names.
    code, output = howdah("etl", config=run / "config.yaml")
    assert code == 2 and "data.spark.conf.spark.hadoop.fs.s3a.secret.key" in output
    assert "without its secrets" in output and "Traceback" not in output
    code, output = howdah("export", "--output", str(tmp_path / "again"), config=run / "config.yaml")
    assert code == 0, output
    assert load(str(run / "config.yaml")).training.max_steps == 4


@pytest.mark.timeout(600)
@pytest.mark.full
def test_the_error_about_an_absent_server_leaves_out_its_password(howdah, tmp_path):
    uri = "http://bot:planted-21@127.0.0.1:9"
    code, output = howdah("train", **{"tracking.mlflow.uri": uri})
    assert (
        code == 5 and "MLflow" in output and f"http://bot:{redact.LEFT_OUT}@127.0.0.1:9" in output
    )
    assert "planted" not in output
    assert files_with(tmp_path / "run", b"planted") == []
    code, output = howdah("train", config=tmp_path / "run" / "config.yaml")
    assert code == 2 and "tracking.mlflow.uri" in output and "without its secrets" in output
