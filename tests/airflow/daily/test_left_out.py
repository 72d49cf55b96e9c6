"""Secrets of the installation's defaults: Airflow stores none of them, commands get all of them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from tests.alerts.receiver import receiving
from tests.support.airflow.day_tasks import Store, Ti

pytestmark = pytest.mark.airflow

SECRETS = ("hunter2", "pw4mlflow")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Writes this installation's defaults, with secrets in them."""

    def write(command: list[str], **more):
        values = {
            "alerts": {"command": command},
            "data": {"source": str(tmp_path / "{ds}.csv"), "dataset": str(tmp_path / "data")},
            "publish": {"directory": str(tmp_path / "models")},
            "tracking": {"mlflow": {"uri": "http://bot:pw4mlflow@127.0.0.1:9"}},
            **more,
        }
        (tmp_path / "defaults.json").write_text(json.dumps(values))
        monkeypatch.setenv("HOWDAH_AIRFLOW_DEFAULTS", str(tmp_path / "defaults.json"))

    return write


SPARK = {"spark": {"conf": {"spark.hadoop.fs.s3a.secret.key": "hunter2"}}}


def checked(kind, hook, params):
    task = kind(task_id="check")
    task._hook = hook
    run = SimpleNamespace(data_interval_start=None, logical_date=None)
    context = {
        "ti": Ti(), "params": params, "task_state_store": Store(), "dag_run": run,
        "triggering_asset_events": {},
    }  # fmt: skip
    return task.execute(context)


def test_no_secret_is_in_a_result_of_a_task_and_the_alert_is_sent(hook, installed, tmp_path):
    from airflow.sdk.exceptions import AirflowException

    from howdah.airflow.daily.check import CheckDayOperator
    from howdah.airflow.operators import CheckOperator

    here = hook(run_root=str(tmp_path / "runs"))
    with receiving() as receiver:
        installed(receiver.command)
        finetune = checked(CheckOperator, here, {"model.base": str(tmp_path / "model")})
        daily = checked(CheckDayOperator, here, {"partition": "ds=1"})
        for made in (finetune, daily):
            stored = json.dumps(made)
            assert "***left-out***" in stored
            assert not [secret for secret in SECRETS if secret in stored]
        for made in (finetune, daily):
            with pytest.raises(AirflowException) as failed:  # no run was trained there
                here.run(["gate", "--json"], config=made["config"])
            assert not [secret for secret in SECRETS if secret in str(failed.value)]
        assert len(receiver.wait(2)) == 2


def test_every_secret_of_the_defaults_is_put_back_and_none_that_is_no_longer_there(
    hook, installed, tmp_path
):
    from howdah.airflow.daily.check import CheckDayOperator
    from howdah.airflow.form import left_out
    from howdah.airflow.scoring import CheckScoringOperator
    from howdah.errors import ConfigError

    data = {"source": "/in/{ds}.csv", **SPARK}
    installed(["/opt/page"], data=data)
    daily = checked(CheckDayOperator, hook(), {"partition": "ds=1"})["config"]
    form = {"model": "m", "source": "/in/1.csv", "output": None, "text_column": None,
             "id_column": None, "master": None}  # fmt: skip
    scoring = checked(CheckScoringOperator, hook(), form)["config"]
    for made in (daily, scoring):
        stored = json.dumps(made)
        assert not [secret for secret in SECRETS if secret in stored], stored
        whole = left_out.put_back(made)
        assert whole["data"]["spark"]["conf"] == SPARK["spark"]["conf"]
        assert whole["tracking"]["mlflow"]["uri"] == "http://bot:pw4mlflow@127.0.0.1:9"
        assert left_out.leave_out(whole) == made
    # A key that was changed since is used; a server that was changed is not the run's.
    other = {"conf": {"spark.hadoop.fs.s3a.secret.key": "hunter3"}}
    installed(["/opt/page"], data={**data, "spark": other})
    assert left_out.put_back(daily)["data"]["spark"]["conf"] == other["conf"]
    installed(["/opt/page"], tracking={"mlflow": {"uri": "http://elsewhere:9"}})
    with pytest.raises(ConfigError, match="no longer have secrets") as caught:
        left_out.put_back(daily)
    for key in ("tracking.mlflow.uri", "data.spark.conf"):
        assert key in caught.value.where
