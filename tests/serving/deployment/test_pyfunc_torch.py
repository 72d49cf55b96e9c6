"""The model that MLflow serves: answers written by MLflow's own code, read by a strict parser."""

import io
import json
from types import SimpleNamespace

import pandas as pd
import pytest
from mlflow.pyfunc.scoring_server import predictions_to_json

from howdah.serving.deployment.pyfunc_model import HowdahModel
from tests.runs.finished_runs import LABELS, finished_run

TEXTS = ["the cat", "", None, "a dog"]


@pytest.fixture(scope="module")
def export(tmp_path_factory, tiny_model_dir) -> str:
    return finished_run(str(tmp_path_factory.mktemp("run")), tiny_model_dir, run_id="run-1")


def answered(export: str, *, reject_below: float | None = None, dtype: str = "object") -> list:
    """The rows of an answer of `mlflow models serve`."""
    if reject_below is not None:
        path = f"{export}/export/howdah.json"
        with open(path) as file:
            info = json.load(file)
        info["decision"] = {"reject_below": reject_below, "temperature": 100.0}
        with open(path, "w") as file:
            json.dump(info, file)
    model = HowdahModel()
    model.load_context(SimpleNamespace(artifacts={"export": export}, model_config={}))
    out = io.StringIO()
    predictions_to_json(model.predict(None, pd.DataFrame({"text": TEXTS}, dtype=dtype)), out)

    def refused(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(out.getvalue(), parse_constant=refused)["predictions"]


@pytest.mark.parametrize("dtype", ["object", "string"])  # of the latter a null is pandas.NA
def test_rows_without_a_prediction_are_null_in_json(export, dtype):
    rows = answered(export, dtype=dtype)
    assert [row["label"] in LABELS for row in rows] == [True, False, False, True]
    for row in rows[1:3]:
        assert (row["label"], row["score"], row["scores"]) == (None, None, None)
        assert row["error"]
    assert rows[0]["score"] == max(rows[0]["scores"]) and rows[0]["error"] is None


def test_a_rejected_row_keeps_its_scores(export):
    row = answered(export, reject_below=0.99)[0]
    assert row["label"] is None and row["error"] is None
    assert len(row["scores"]) == 2 and row["score"] == max(row["scores"])
