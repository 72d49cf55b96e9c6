"""The DAG `howdah_tune`, for real: a small study of the installation's defaults, published."""

from __future__ import annotations

import json

import pytest

from howdah import storage
from tests import ROOT
from tests.runs.studies import configuration

pytestmark = [pytest.mark.airflow, pytest.mark.full]


def test_a_study_from_the_installations_defaults_to_a_published_model(
    airflow_home, tmp_path, tiny_dataset, tiny_model_dir, monkeypatch
):
    """Under the default policy: nothing is sent."""
    from airflow.dag_processing.dagbag import DagBag

    sections = configuration(
        tmp_path, dataset=tiny_dataset.path, base=tiny_model_dir,
        tune={"parallel": 2, "publish": True},
        **{"training.max_steps": 8, "publish.directory": str(tmp_path / "models")},
    )  # fmt: skip
    del sections["run"]["directory"]
    (tmp_path / "defaults.yaml").write_text(json.dumps(sections))
    monkeypatch.setenv("HOWDAH_AIRFLOW_DEFAULTS", str(tmp_path / "defaults.yaml"))
    extra = {"run_root": str(tmp_path / "runs"), "working_directory": str(tmp_path)}
    connection = json.dumps({"conn_type": "howdah", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_HOWDAH_DEFAULT", connection)

    bag = DagBag(str(ROOT / "dags" / "tune.py"))
    assert bag.import_errors == {}
    dag = bag.dags["howdah_tune"]
    order = [task.task_id for task in dag.topological_sort()]
    assert order == ["check", "preflight", "etl.build", "etl.quality", "tune"]
    run = dag.test(run_conf={})
    done = {ti.task_id: str(ti.state) for ti in run.get_task_instances()}
    assert done.pop("etl.build") == "skipped"
    assert set(done.values()) == {"success"}, done

    (study,) = (tmp_path / "runs" / "howdah_tune").iterdir()
    best = storage.read_json(str(study / "best.json"))["best"]
    current = storage.read_json(str(tmp_path / "models" / "tiny" / "current.json"))
    assert current["run_directory"] == best["run"] == str(study / "trials" / str(best["trial"]))
