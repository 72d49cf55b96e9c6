"""The page of a study, from made-up trials."""

from __future__ import annotations

import re

import pytest

from howdah.tuning.page import render
from howdah.tuning.summary import Study, Trial


def trial(number: int, state="finished", value: float | None = None, **fields) -> Trial:
    params = {
        "training.learning_rate": 10.0 ** -(2 + number),
        "model.freeze_embeddings": bool(number % 2),
    }
    seen = {1: 0.9 - 0.1 * number, 2: 0.8 - 0.1 * number}
    return Trial(
        number=number, state=state, value=value, **{"params": params, "evaluations": seen} | fields
    )


STUDY = Study(
    name="<fast & small>", directory="runs/study", metric="loss",
    log_scaled=frozenset({"training.learning_rate"}),
    trials=(
        trial(0, value=0.7), trial(1, value=0.3), trial(2, "pruned"),
        trial(3, "failed", evaluations={}, error="the loss is not finite"),
        trial(4, "waiting", params={}, evaluations={}),
    ),
)  # fmt: skip


def test_the_best_is_best_in_the_metrics_own_direction():
    assert STUDY.best.number == 1
    higher = Study(name="x", directory="d", metric="accuracy", trials=STUDY.trials)
    assert higher.best.number == 0
    assert Study(name="x", directory="d", metric="loss", trials=()).best is None


def test_the_page_is_one_file_with_every_trial_and_plot():
    page = render(STUDY, "run: {name: x}\n")
    assert "&lt;fast &amp; small&gt;" in page and "<fast" not in page
    assert "the loss is not finite" in page and "Best: trial 1" in page
    # history, evaluations, one for each of two keys, parallel coordinates
    assert page.count("<svg") == 5
    outside = re.findall(r'(?:src|href)="(?!#)([^"]*)"', page)
    assert outside == ["data:,", "trials/1/report.html"]
    assert "@import" not in page and "url(http" not in page
    assert ">0.3000<" in page and "mathdefault" not in page


@pytest.mark.parametrize("trials", [(), (trial(0, "running", evaluations={}),)])
def test_a_study_without_values_has_a_page(trials):
    page = render(Study(name="x", directory="d", metric="loss", trials=trials), "")
    assert "No trial was evaluated" in page and "<svg" not in page


def test_plain_json_names_the_best_run():
    found = STUDY.as_dict(lambda number: f"runs/study/trials/{number}")
    assert found["best"]["run"] == "runs/study/trials/1"
    assert found["best"]["export"] == "runs/study/trials/1/export"
    counts = {"waiting": 1, "running": 0, "finished": 2, "pruned": 1, "failed": 1}
    assert found["trials"] == counts
