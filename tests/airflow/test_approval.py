"""Approval between gate and publishing: in a real Airflow, asked and answered as a person does."""

from __future__ import annotations

import pytest

from tests.support.waiting import wait_until

pytestmark = pytest.mark.airflow

VERDICT = {
    "passed": True,
    "split": "test",
    "checks": [
        {"metric": "accuracy", "got": 0.93, "wanted": "at least 0.9", "against": "gate.minimum"},
        {"metric": "roc_auc", "got": None, "wanted": "at least 0", "against": "published v=1"},
    ],
}

# A run's last tasks with stand-ins around the approval: how long that takes is the person's affair.
_DAG = """
from airflow.sdk import DAG, Param, task

from howdah.airflow.approval import ApproveOperator

with DAG("{name}", schedule=None, params={{"approval": Param(False, type="boolean")}}) as dag:

    @task
    def gate():
        return {verdict!r}

    @task(trigger_rule="none_failed")
    def publish(note):
        return note

    verdict = gate()
    approve = ApproveOperator(
        task_id="approve", required="{{{{ params.approval }}}}", verdict=verdict,
        run_directory="/runs/1",
    )
    published = publish("{{{{ (ti.xcom_pull(task_ids='approve') or {{}}).get('note', '') }}}}")
    verdict >> approve >> published
"""
NAME = "approval_alone"
LIMIT = 120.0  # to detect a hang


@pytest.fixture(scope="module")
def airflow(airflow_standalone):
    airflow_standalone.add_dag(NAME, _DAG.format(name=NAME, verdict=VERDICT))
    return airflow_standalone


def ask(airflow, answer: str) -> tuple[str, dict]:
    """A run that waits, answered; its id and what was shown."""
    run_id = airflow.trigger(NAME, {"approval": True})
    airflow.wait_task(NAME, run_id, "approve", {"awaiting_input"}, LIMIT)
    # An answer that is faster than the scheduler, which has yet to hear that the task's process
    # has ended, fails that try (docs/decisions/airflow.md); no person is.
    heard = f"TaskInstance Finished: dag_id={NAME}, task_id=approve, run_id={run_id}"
    wait_until(lambda: heard in airflow.home.log_of("scheduler").read_text())
    path = f"/dags/{NAME}/dagRuns/{run_id}/taskInstances/approve/-1/hitlDetails"
    shown = airflow.api("GET", path)
    airflow.api("PATCH", path, json={"chosen_options": [answer], "params_input": {}})
    airflow.wait_run(NAME, run_id, LIMIT)
    return run_id, shown


def test_approved(airflow):
    run_id, shown = ask(airflow, "Approve")
    assert shown["subject"] == f"Publish the model of {run_id}?"
    assert "| accuracy | 0.93 | at least 0.9 | gate.minimum |" in shown["body"]
    assert "| roc_auc | undefined | at least 0 | published v=1 |" in shown["body"]
    assert "/runs/1" in shown["body"]
    assert airflow.task(NAME, run_id, "publish")["state"] == "success"
    note = airflow.xcom(NAME, run_id, "publish")
    assert note.startswith("approved in Airflow by admin at 20")


def test_rejected(airflow):
    run_id, _ = ask(airflow, "Reject")
    assert airflow.task(NAME, run_id, "publish")["state"] == "skipped"


def test_no_approval_is_asked_for_by_default(airflow):
    run_id = airflow.trigger(NAME)
    airflow.wait_run(NAME, run_id, LIMIT)
    states = {name: task["state"] for name, task in airflow.tasks(NAME, run_id).items()}
    assert states == {"gate": "success", "approve": "skipped", "publish": "success"}
    assert airflow.xcom(NAME, run_id, "publish") in (None, "")


def test_a_gate_without_bounds_says_so():
    from howdah.airflow.approval import approval_text

    assert "has no bounds" in approval_text({"checks": []}, "/runs/1")
