"""Airflow's pages in a real browser: log in, fill the form, watch the run, follow its links."""

import json

import pytest

from howdah import storage
from tests.support.airflow.browser import (
    choose,
    field,
    link_of,
    log_in,
    open_form,
    send,
    task_page,
    text_area,
)

pytestmark = pytest.mark.airflow

DAG = "howdah_finetune"


def test_from_the_form_to_the_report(
    airflow_standalone, browser, tiny_dataset, tiny_model_dir, tmp_path
):
    """The dataset is there already: the ETL has tests of its own, and this one's time is short."""
    airflow = airflow_standalone
    airflow.wait_dags([DAG])
    log_in(browser, airflow)
    open_form(browser, airflow, DAG)
    browser.fill(field("run.name"), "by-hand")
    browser.fill(field("data.dataset"), tiny_dataset.path)
    browser.fill(field("model.base"), tiny_model_dir)
    choose(browser, "training.framework", "torch")
    browser.fill(field("training.max_steps"), "6")
    browser.fill(field("training.global_batch_size"), "8")
    browser.fill(field("training.learning_rate"), "0.0003")
    browser.fill(field("publish.directory"), str(tmp_path / "models"))
    typed = (
        "# few rows\nevaluation.max_rows: 16\nevaluation.splits: [test]\n"
        "training.per_device_max_tokens: 4096"
    )
    browser.fill(text_area("set"), typed)
    browser.picture("form")
    run_id = send(browser)
    sent = airflow.run(DAG, run_id)["conf"]
    assert sent["data.dataset"] == tiny_dataset.path
    assert sent["training.learning_rate"] == 0.0003  # typed key by key, the dot with it
    assert (sent["training.max_steps"], sent["training.framework"]) == (6, "torch")
    assert sent["set"] == typed
    assert len(sent) == 19  # no other key has a field

    airflow.wait_run(DAG, run_id, seconds=280)
    browser.see("Success")
    browser.picture("run")

    browser.open(task_page(airflow, DAG, run_id, "train"))
    browser.see("step 6")  # rank 0's lines are the task's log
    browser.picture("train")
    report = link_of(browser, task_page(airflow, DAG, run_id, "train", "details"), "Report")
    assert report.startswith(airflow.files_url) and report.endswith("/report.html")
    browser.open(report)
    browser.see("by-hand")
    browser.see("accuracy")
    browser.picture("report")

    assert "per_device_max_tokens: 4096" in airflow.log(DAG, run_id, "check")
    shown = airflow.task(DAG, run_id, "train")["rendered_fields"]["config"]
    assert shown["training"]["per_device_max_tokens"] == 4096  # its name is not that of a secret
    assert shown["evaluation"]["max_rows"] == 16
    assert shown["evaluation"]["splits"] == ["test"]
    assert airflow.xcom(DAG, run_id, "check")["config"] == shown
    published = airflow.xcom(DAG, run_id, "publish")
    export = json.loads(storage.read_text(storage.join(published["path"], "howdah.json")))
    assert published["name"] == "by-hand" and export["run_id"] == published["run_id"]
