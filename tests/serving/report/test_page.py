"""report.html in a real Chromium: no network, dark, narrow, from the confusion to its rows."""

import os
import re

import numpy as np
import pytest
import yaml

from howdah import storage
from howdah.config.metric_table import SELECTABLE, metrics_of
from howdah.serving.report.report import write
from tests.fixtures.airflow import browser  # noqa: F401
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
        own = random.integers(0, classes, count)
        logits = random.standard_normal((count, classes))
        logits[np.arange(count), own] += 3.0
        said = texts or [" ".join(random.choice(words(), random.integers(3, 40)))
                         for _ in range(count)]  # fmt: skip
        splits[split] = ((said * count)[:count], own.tolist(), logits)
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
    asked = "return performance.getEntriesByType('resource').map(e => e.name)"
    assert script(asked) == [] and browser.driver.get_log("browser") == []
    assert script("return document.querySelectorAll('img, iframe, object, link').length") == 0
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

    browser.driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert "recall" in browser.find("#tip").text
    browser.find("#reject").send_keys(Keys.ARROW_RIGHT)
    assert "Reject" in browser.find("#rejected").text

    light = background(browser)
    shape(browser, 400, "dark")
    dark = background(browser)
    assert dark != light
    browser.find("#theme").click()
    assert background(browser) == light
    assert script("return document.documentElement.scrollWidth") <= 400
    wide = """return [...document.querySelectorAll('body *')].filter(e =>
        e.getBoundingClientRect().right > 401 && !e.closest('.wide, nav, pre')).length"""
    assert script(wide) == 0


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
    assert '<bdi class="text"' in storage.read_text(write(run, texts="worst"))
    storage.remove(f"{tmp_path}/data", recursive=True)
    page = storage.read_text(write(run, texts="worst"))
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
        own = (random.random((200, 3)) < 0.3).astype(int)
        several[split] = (texts, own, random.standard_normal((200, 3)) + 3 * (own - 0.5))
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
