"""Airflow's pages in a real browser: log in, fill the form, watch the run, follow its links."""

import json
from urllib.parse import quote, unquote, urlsplit

import pytest

from howdah import storage
from tests.browser import Browser

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


def test_from_the_form_to_the_report(
    airflow_standalone, browser, tiny_dataset, tiny_model_dir, tmp_path
):
    """The dataset is there already: the ETL has tests of its own, and this one's time is short."""
    airflow = airflow_standalone
    airflow.wait_dags([DAG])
    log_in(browser, airflow)
    browser.open(f"{airflow.url}/dags/{DAG}")
    browser.click("[data-testid=trigger-dag-button]")
    browser.find("[data-testid=trigger-dag-submit]")

    browser.fill(field("run.name"), "by-hand")
    browser.fill(field("data.dataset"), tiny_dataset.path)
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
    run_id = unquote(urlsplit(browser.driver.current_url).path.split("/runs/")[1].split("/")[0])
    sent = airflow.run(DAG, run_id)["conf"]
    assert sent["data.dataset"] == tiny_dataset.path
    assert sent["training.learning_rate"] == 0.0003  # typed key by key, the dot with it
    assert (sent["training.max_steps"], sent["training.framework"]) == (6, "torch")
    assert sent["evaluation.max_rows"] == 16

    airflow.wait_run(DAG, run_id, seconds=280)
    browser.see("Success")
    browser.picture("run")

    browser.open(f"{airflow.url}/dags/{DAG}/runs/{quote(run_id)}/tasks/train")
    browser.see("step 6")  # rank 0's lines are the task's log
    browser.picture("train")
    browser.open(f"{airflow.url}/dags/{DAG}/runs/{quote(run_id)}/tasks/train/details")
    report = browser.find("//a[normalize-space()='Report']").get_attribute("href")
    assert report.startswith(airflow.files_url) and report.endswith("/report.html")
    browser.open(report)
    browser.see("by-hand")
    browser.see("accuracy")
    browser.picture("report")

    published = airflow.xcom(DAG, run_id, "publish")
    export = json.loads(storage.read_text(storage.join(published["path"], "howdah.json")))
    assert published["name"] == "by-hand" and export["run_id"] == published["run_id"]
