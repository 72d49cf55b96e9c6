"""report.html in a real Chromium: no network, dark, narrow, from the confusion to its rows."""

import csv
import json
import os
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from howdah import storage
from howdah.config.metric_table import SELECTABLE, metrics_of
from howdah.config.options.drift import DriftSection
from howdah.data.manifest import load_dataset
from howdah.etl import report as data
from howdah.jobs.driver.job_status import JobStatus
from howdah.jobs.status import page as job_page
from howdah.models.profile.profile import Profile
from howdah.serving.drift import page as drift_page
from howdah.serving.drift.examples import Examples
from howdah.serving.drift.findings import Findings, Point
from howdah.serving.drift.judge import judge
from howdah.serving.report import runs
from howdah.serving.report.comparison import compare
from howdah.serving.report.report import write
from howdah.tuning import page as study_page
from howdah.tuning.summary import Study, Trial
from tests.fixtures.airflow import browser  # noqa: F401
from tests.runs.jobs.driver_world import World
from tests.serving.drift import samples
from tests.support.models.finished_run import make_run
from tests.support.models.tiny_model import words

HOSTILE = [
    "plain",
    "</script><script>window.hacked = 1</script>",
    '"><img src=http://127.0.0.1:9/x onerror="window.hacked = 1">',
    "عربي \u202e right \x1b[2J",
]


def made(directory, labels, rows=300, texts=None, ids=None, **more):
    random, splits = np.random.default_rng(0), {}
    classes = len(labels)
    for split, count in (("train", 30), ("validation", rows // 2), ("test", rows)):
        classes_N = random.integers(0, classes, count)
        logits = random.standard_normal((count, classes))
        logits[np.arange(count), classes_N] += 3.0
        sentences = texts or [" ".join(random.choice(words(), random.integers(3, 40)))
                         for _ in range(count)]  # fmt: skip
        splits[split] = ((sentences * count)[:count], classes_N.tolist(), logits)
    names = None if ids is None else {s: [f"{ids}-{s}-{n}" for n in range(rows)] for s in splits}
    return make_run(directory, labels, splits, ids=names, **more)


def shape(page, width, scheme):
    """A window of this width, light or dark."""
    page.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    feature = {"name": "prefers-color-scheme", "value": scheme}
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def background(page):
    return page.driver.execute_script("return getComputedStyle(document.body).backgroundColor")


@pytest.mark.airflow  # Chromium is there where Airflow's tests run
def test_in_a_browser(browser, tmp_path):  # noqa: F811
    run = made(str(tmp_path), HOSTILE, texts=[*HOSTILE, "a plain one"], ids='<b id="x">')
    script = browser.driver.execute_script
    shape(browser, 1280, "light")
    browser.open("file://" + write(run))
    assert not script("return window.hacked")
    # Nothing was asked of a network: neither by the page, nor refused by its policy.
    resources = "return performance.getEntriesByType('resource').map(e => e.name)"
    assert script(resources) == [] and browser.driver.get_log("browser") == []
    assert script("return document.querySelectorAll('img, iframe, object').length") == 0
    assert script("return [...document.querySelectorAll('link')].map(e => e.href)") == ["data:,"]
    blocked = """const done = arguments[0];
        document.addEventListener('securitypolicyviolation', e => done(e.effectiveDirective));
        fetch('http://127.0.0.1:9/').then(() => done('sent'), () => {});"""
    assert browser.driver.execute_async_script(blocked) == "connect-src"

    # A number in the confusion matrix leads to its rows, which open.
    link = browser.find(".matrix a")
    target = link.get_attribute("href").partition("#")[2]
    assert not script("return document.getElementById(arguments[0]).open", target)
    link.click()
    browser.until(
        lambda: script("return document.getElementById(arguments[0]).open", target), "open rows"
    )
    row = browser.find(f"#{target} .rows li")
    assert row.is_displayed() and '<b id="x">' in row.text

    # Values under the pointer, by keys alone.
    script("document.querySelector('svg[data-lines]').focus()")
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import Select

    browser.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert browser.find("#tip").text.startswith("step 10\ntraining: ")
    browser.find("#reject").send_keys(Keys.ARROW_RIGHT)
    assert "Reject" in browser.find("#rejected").text

    light = background(browser)
    shape(browser, 400, "dark")
    dark = background(browser)
    assert dark != light
    theme = Select(browser.find("#theme"))
    theme.select_by_visible_text("light")
    assert background(browser) == light
    theme.select_by_visible_text("system")
    assert background(browser) == dark
    assert "2030-01-01" in browser.find("time").text and "UTC" not in browser.find("time").text

    assert len(browser.driver.get_log("browser")) == 2  # of the request above
    # Each page keeps within a phone, and a meaning shows where its word has the focus.
    for path in [*other_pages(run), f"{run}/report.html"]:
        for width in (1280, 390):
            shape(browser, width, "dark")
            browser.open(f"file://{path}")
            assert script("return document.documentElement.scrollWidth") <= width, path
            beyond = """return [...document.querySelectorAll('body *')].filter(e =>
                e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.wide, pre'))
                .map(e => e.outerHTML.slice(0, 80))"""
            assert script(beyond) == [], path
            assert browser.driver.get_log("browser") == [], path
    meaning = """const word = document.querySelector('abbr'); word.focus();
        return getComputedStyle(word, '::after').content + word.title"""
    browser.open(f"file://{run}/report.html")
    assert script(meaning).startswith('"') and "none" not in script(meaning)[:6]

    # A click on a column sorts the list of runs; a run leads to its report.
    browser.open(f"file://{os.path.dirname(run)}/runs.html")
    order = "return [...document.querySelectorAll('tbody tr')].map(e => e.cells[0].innerText)"
    assert script(order) == ["copy", "run"]
    for expected in (["copy", "run"], ["run", "copy"]):
        browser.find("th:nth-child(4) button").click()
        assert script(order) == expected
    browser.find("tbody a").click()
    browser.until(lambda: "report.html" in browser.driver.current_url, "the run's report")
    links = "return [...document.querySelectorAll('nav.pages a')].map(e => e.innerText)"
    assert script(links) == ["All runs", "Comparison"]


def other_pages(run):
    """The pages about a run and a better copy of it: of the data, both runs, all runs."""
    top = os.path.dirname(run)
    copy = f"{top}/copy"
    shutil.copytree(run, copy)
    values = storage.read_json(f"{copy}/run.json")
    values["metrics"]["test"]["macro_f1"] += 0.05
    storage.write_whole(f"{copy}/run.json", json.dumps(values).encode())
    compare([run, copy], f"{top}/comparison.html")
    write(copy)
    rows = runs.listed(top, lambda directory: "lost", say=pytest.fail)
    manifest = load_dataset(values["dataset"]).manifest
    manifest.quality["look"] = [
        {"kind": "cut", "text": "x" * 300, "yaml": ["data:", "  a: " + "y" * 99]}
    ]
    samples = SimpleNamespace(samples={"a" * 60: HOSTILE}, reject_samples={"empty": HOSTILE})
    data.write(f"{top}/data", manifest, samples)
    pages = [f"{top}/comparison.html", runs.write(top, rows), f"{top}/data/report.html"]
    write(run)
    return [*pages, *pages_without_a_run(top)]


def pages_without_a_run(top):
    """The pages of drift, of a study and of a job, with long and hostile words in each."""
    long = "word" * 40
    reference = samples.reference(labels=(HOSTILE[1], long, "c"))
    reference.add(*samples.rows(1, 400))
    current, shown = Profile.like(reference), Examples(reference)
    scores_NC, ids_N = samples.rows(2, 300)
    scores_NC = (scores_NC + np.eye(3, dtype=np.float32)[0]) / 2  # one label takes over
    ids_N = [np.repeat(ids, 3) for ids in ids_N]
    current.add(scores_NC, ids_N)
    current.add_failed(empty=40)
    shown.add([(f"{long}{n}", HOSTILE[n % 4]) for n in range(300)], scores_NC, ids_N)
    verdict = judge(reference, current)
    assert {"label", "length", "empty"} <= {column.name for column in verdict.alarms}
    points = [Point(name=f"ds={long}{n}", version=n, verdict=verdict) for n in (1, 2)]
    findings = Findings(
        model=long, directory=long, version=1, run_id=long, what=long, reference=reference,
        current=current, verdict=verdict, limits=DriftSection(), points=points, examples=shown,
    )  # fmt: skip
    drift_page.write(findings, f"{top}/drift", dict.fromkeys(range(60), HOSTILE[1]))

    params = {"training.learning_rate": 2.987039212644e-05, "model.base": f"/models/{long}"}
    trials = [
        Trial(number=n, state="finished", value=0.5 + n / 10, params=params, evaluations={1: 0.5})
        for n in range(4)
    ] + [Trial(number=4, state="failed", params=params, error=f"{HOSTILE[1]} {long}")]
    study = Study(
        name=long, directory=f"/{long}", metric="macro_f1", trials=tuple(trials),
        choices=frozenset({"model.base"}), importance={"training.learning_rate": 0.9},
    )  # fmt: skip

    world = World()
    world.train("a", "b")
    job_status = JobStatus("application_1_0001", 1)
    job_status.take({"type": "checkpoint", "step": 100, "path": f"hdfs://nn/{long}/step-100"})
    for step in (50, 100):
        metrics = dict.fromkeys(("loss", *metrics_of("single_label")), step / 200)
        job_status.take(
            {"type": "evaluation", "step": step, "split": "validation", "metrics": metrics}
        )
    job_status.event(f"{HOSTILE[1]} {long}")
    status = job_status.status(world.job) | {"step": 120, "total_steps": 1000, "eta_seconds": 7.0}
    status["error"] = {"what": "rank 1 was lost", "where": f"/{long}"}
    status["ranks"][0] |= {"node": f"{long}.example.com", "stopped": True}
    texts = {
        "study": study_page.render(study, f"run: {{name: {long}}}\n"),
        "job": job_page.page(status, [(1, 2.0), (2, 1.0)], long),
    }
    for name, text in texts.items():
        storage.write_whole(f"{top}/{name}.html", text.encode())
    return [f"{top}/drift/drift.html", *(f"{top}/{name}.html" for name in texts)]


def test_what_users_wrote_is_text(tmp_path):
    page = storage.read_text(write(made(str(tmp_path), HOSTILE, texts=HOSTILE, ids='"><i>')))
    assert "<script>window" not in page and "<img" not in page and "<i>" not in page
    assert "\u202e" not in page and "\x1b" not in page and "\\u202e" in page
    assert page.count("<script") == page.count("</script>") == 2
    assert "connect-src" not in page and "default-src 'none'" in page


def test_a_hundred_classes_stay_below_two_megabytes(tmp_path):
    labels = [f"class number {n:03d} with a long name" for n in range(100)]
    path = write(made(str(tmp_path), labels, rows=3000))
    page = storage.read_text(path)
    assert os.path.getsize(path) < 2 * 2**20
    assert page.count('<details class="pair"') == 20 and 'class="matrix"' not in page
    assert labels[99] in page


def test_without_a_dataset_predictions_or_texts(tmp_path):
    run = made(str(tmp_path), ["a", "b"], config={"report": {"texts": "none"}})
    page = storage.read_text(write(run))
    assert "Texts are left out" in page and '<bdi class="text"' not in page and "test-" in page
    assert '<bdi class="text"' in storage.read_text(write(run, texts="masked"))
    storage.remove(f"{tmp_path}/data", recursive=True)
    page = storage.read_text(write(run, texts="masked"))
    assert "dataset cannot be read" in page and '<bdi class="text"' not in page
    storage.remove(f"{run}/predictions", recursive=True)
    page = storage.read_text(write(run))
    assert "no predictions" in page and "Confusion" in page


def other_tasks(directory):
    """{task: run directory} of several labels and of a number a row."""
    random = np.random.default_rng(3)
    texts = [" ".join(random.choice(words(), 9)) for _ in range(200)]
    several, numbers = {}, {}
    for split in ("train", "validation", "test"):
        targets = (random.random((200, 3)) < 0.3).astype(int)
        several[split] = (texts, targets, random.standard_normal((200, 3)) + 3 * (targets - 0.5))
        target = random.normal(3, 2, 200)
        numbers[split] = (texts, target.tolist(), (target + random.normal(0, 1, 200))[:, None])
    return {
        "multi_label": make_run(f"{directory}/m", ["a", "b", "c"], several, task="multi_label"),
        "regression": make_run(f"{directory}/r", ["score"], numbers, task="regression"),
    }


def test_other_tasks_have_their_pages(tmp_path):
    runs = other_tasks(tmp_path)
    page = storage.read_text(write(runs["multi_label"]))
    assert "<h3>Thresholds</h3>" in page and "Precision and recall" in page and "with a" in page
    page = storage.read_text(write(runs["regression"]))
    assert "Residuals" in page and "off by" in page and "mean absolute error" in page


def test_each_metric_that_can_be_the_main_one_has_its_page(tmp_path):
    runs = {**other_tasks(tmp_path), "single_label": made(f"{tmp_path}/s", ["a", "b", "c"])}
    for task, run in runs.items():
        for name in set(metrics_of(task)) & set(SELECTABLE):
            keys = yaml.safe_load(storage.read_text(f"{run}/config.yaml"))
            keys["evaluation"] = {"metric": name}
            storage.write_whole(f"{run}/config.yaml", yaml.safe_dump(keys).encode())
            page = storage.read_text(write(run))
            assert re.search(r"Inconclusive|Not good|Good", page) and name in page


def test_texts_are_the_source_s_own_and_masked(tmp_path):
    """A row's text is found by its id, if it still gives the ids that the model was trained on."""
    written = ["Write to Zoe.B@Example.com", "call +49 (0)170 123-4567!", "  A plain  ONE "]
    source = {"source": f"{tmp_path}/made.csv", "columns": {"text": "text", "id": "id"}}
    made_run = made(str(tmp_path), ["a", "b"], 2000, texts=written, config={"data": source})
    with open(f"{tmp_path}/made.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "text"])
        for split in ("validation", "test"):
            for number in range(2000):
                changed = "other words" if split == "validation" else written[number % 3]
                rows.writerow([f"{split}-{number}", changed])
    page = storage.read_text(write(made_run))
    assert "Write to [mail]" in page and "call [phone]!" in page and "A plain  ONE" in page
    assert "Example.com" not in page and "123-4567" not in page and "other words" not in page
    assert "texts are decoded from token ids" in page  # those of validation, which have changed
    assert "Zoe.B@Example.com" in storage.read_text(write(made_run, texts="plain"))
    assert '<bdi class="text"' not in storage.read_text(write(made_run, texts="none"))


def test_the_data_report_says_whether_one_can_train(tmp_path):
    run = made(str(tmp_path), ["a", "<b>"])
    manifest = load_dataset(storage.read_json(f"{run}/run.json")["dataset"]).manifest
    built = SimpleNamespace(samples={"a": ["from zoe@example.com"]}, reject_samples={"empty": [""]})
    value = data.contents(manifest, built)
    assert value["samples"] == {"a": ["from [mail]"]} and value["reject_samples"] == {}
    page = data.page(value)
    assert "Ready for training" in page and "480</b> rows" in page and "&lt;b&gt;" in page
    assert "zoe@" not in page and page.count("<script") == 1
    manifest.quality["look"] = [
        {"kind": "absent_labels", "text": "'<b>' has no row in test.", "yaml": ["data: {}"]}
    ]
    page = data.page(data.contents(manifest, built, "none"))
    assert "Check this before training" in page and "<pre>data: {}</pre>" in page
    assert "[mail]" not in page and "report.texts: none" in page
    write(run)
    data.write(f"{tmp_path}/data/v=0", manifest, built, "none", run)
    page = storage.read_text(f"{tmp_path}/data/v=0/report.html")
    assert '<a href="../../run/report.html">Run report</a>' in page and "All runs" not in page
