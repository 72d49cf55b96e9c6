"""A real ETL whose configuration has a secret of each sort: its dataset has none, nor what it says.

The dataset is private too: others see nothing of what is below it.
"""

import json
import os
import subprocess
import sys

import pytest

from howdah.data.manifest import load_dataset
from tests.config.test_redact import SECRETS
from tests.fixtures.spark import FEW_JOBS
from tests.runs.training_runs import ROOT
from tests.training.run.test_secrets import files_with


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_dataset_has_no_secret_and_is_private(tmp_path, tiny_model_dir):
    rows = "".join(f"a text of row {n} about things {n * 7},{'ab'[n % 2]}\n" for n in range(60))
    (tmp_path / "rows.csv").write_text("text,label\n" + rows)
    conf = {**SECRETS["data.spark.conf"], "spark.ui.enabled": "false"}
    config = {
        "data": {
            "source": str(tmp_path / "rows.csv"),
            "dataset": str(tmp_path / "data" / "set"),
            **FEW_JOBS,
            "spark": {"master": "local[1]", "driver_memory": "1g", "conf": conf},
        },
        "model": {"base": tiny_model_dir},
        "yarn": {"files": SECRETS["yarn.files"]},
        "job": {"env": SECRETS["job.env"]},
        "tracking": {"mlflow": {"uri": "https://bot:planted-21@mlflow:5000"}},
    }
    config_file = tmp_path / "given.yaml"
    config_file.write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-m", "howdah.cli", "etl", "--config", str(config_file), "--json"],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": ROOT}, capture_output=True, text=True,
        timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "planted" not in done.stdout + done.stderr
    dataset = tmp_path / "data" / "set"
    assert load_dataset(str(dataset)).manifest.rows("train")
    assert files_with(dataset, b"planted") == []
    (version,) = dataset.iterdir()
    assert {place.stat().st_mode & 0o777 for place in (dataset, version)} == {0o750}
