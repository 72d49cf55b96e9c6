"""Airflow's pages in a real browser: log in, fill the form, watch the run, follow its links."""

import json

import pytest

from tests.browser import Browser
from tests.word_rows import write_rows

pytestmark = pytest.mark.airflow

DAG = "howdah_finetune"


@pytest.fixture
def browser(tmp_path, request):
    """A browser; its screenshots go to build/screenshots/."""
    pictures = request.config.rootpath / "build" / "screenshots"
    page = Browser(pictures, tmp_path / "profile")
    yield page
    page.quit()


def field(name):
    """The form's field of a key of the configuration."""
    return f'input[name="element_{name}"]'


def log_in(browser, airflow):
    browser.open(airflow.url)
    browser.fill("input[name=username]", "admin")
    browser.fill("input[name=password]", airflow.password)
    browser.click("button[type=submit]")
    browser.find("[data-testid=nav-home-link]")


def choose(browser, name, value):
    """Choose in a field that has a list."""
    browser.click(f'[id="element_{name}"]')
    browser.click(f'//*[@id="element_{name}"]//*[@role="option"][.="{value}"]')


def test_from_the_form_to_the_report(airflow_standalone, browser, tiny_model_dir, tmp_path):
    airflow, rows = airflow_standalone, write_rows(tmp_path / "rows.csv")
    airflow.wait_dags([DAG])
    log_in(browser, airflow)
    browser.open(f"{airflow.url}/dags/{DAG}")
    browser.click("[data-testid=trigger-dag-button]")
    browser.find("[data-testid=trigger-dag-submit]")

    browser.fill(field("run.name"), "by-hand")
    browser.fill(field("data.source"), rows)
    browser.fill(field("data.dataset"), str(tmp_path / "dataset"))
    browser.fill(field("model.base"), tiny_model_dir)
    choose(browser, "training.framework", "torch")
    browser.fill(field("training.max_steps"), "6")
    browser.fill(field("training.global_batch_size"), "8")
    browser.fill(field("training.learning_rate"), "0.0003")
    browser.fill(field("publish.directory"), str(tmp_path / "models"))
    browser.click("//button[normalize-space()='Evaluation']")  # a folded section
    browser.fill(field("evaluation.max_rows"), "16")
    browser.picture("form")
    browser.click("[data-testid=trigger-dag-submit]")

    browser.until(lambda: "/runs/" in browser.driver.current_url, "page of the run")
    (run,) = airflow.api("GET", f"/dags/{DAG}/dagRuns", params={"limit": 5})["dag_runs"]
    sent = run["conf"]
    assert sent["data.source"] == rows
    assert sent["training.learning_rate"] == 0.0003  # typed key by key, the dot with it
    assert (sent["training.max_steps"], sent["training.framework"]) == (6, "torch")
    assert sent["evaluation.max_rows"] == 16

    run_id = run["dag_run_id"]
    airflow.wait_run(DAG, run_id, seconds=280)
    browser.see("Success")
    browser.picture("run")

    browser.open(f"{airflow.url}/dags/{DAG}/runs/{run_id}/tasks/train")
    browser.see("step 6")  # rank 0's lines are the task's log
    browser.picture("train")
    report = browser.find("//a[normalize-space()='Report']").get_attribute("href")
    browser.open(report)
    browser.see("by-hand")
    browser.see("accuracy")
    browser.picture("report")

    published = airflow.xcom(DAG, run_id, "publish")
    told = json.loads((tmp_path / "models" / "by-hand" / "v=1" / "howdah.json").read_text())
    assert published["version"] == 1 and told["run_id"] == published["run_id"]
