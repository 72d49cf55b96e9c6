"""The page of a study, from made-up trials."""

from __future__ import annotations

import datetime
import re

import numpy as np
import pytest

from howdah.config.tune import Dimension
from howdah.tuning.page import render
from howdah.tuning.summary import Study, Trial, summarise


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
        trial(3, "failed", evaluations={1: float("nan")}, error="the loss is not finite"),
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
    reports = ["trials/1/report.html", "trials/0/report.html", "trials/1/report.html"]
    assert outside == ["data:,", *reports]
    # A pruned trial's value, on fewer rows, is no dot among those of finished ones.
    assert "trial 2: pruned, 0.6000 at evaluation 2" in page
    values = [float(text) for text in re.findall(r"<title>trial \d+: (0\.\d+)</title>", page)]
    assert min(values) == 0.3
    assert (
        "howdah publish --config runs/study/config.yaml --set run.directory=runs/study/trials/1"
        in page
    )
    assert "--set training.learning_rate=0.001 --set model.freeze_embeddings=true" in page
    assert "Too few finished trials" in page
    assert "@import" not in page and "url(http" not in page
    assert ">0.3000<" in page and "mathdefault" not in page


def test_values_are_shown_as_the_command_line_takes_them():
    best = trial(0, value=0.5, params={"training.max_steps": None, "model.dropout": 1e-05})
    keys = frozenset({"training.max_steps"})
    page = render(Study(name="x", directory="d", metric="loss", trials=(best,), choices=keys), "")
    assert "--set training.max_steps=null --set model.dropout=1e-05" in page
    assert "<td>null</td>" in page and "None" not in page


def test_choices_that_are_equal_numbers_have_a_place_each():
    choices = ["a", 1, True, 0.5]
    trials = [trial(n, value=0.1 * n, params={"model.x": one}) for n, one in enumerate(choices)]
    study = Study(
        name="x", directory="d", metric="loss", trials=tuple(trials), choices=frozenset({"model.x"})
    )
    page = render(study, "")
    assert all(f">{name}</text>" in page for name in ("a", "1", "true", "0.5"))


@pytest.mark.parametrize("trials", [(), (trial(0, "running", evaluations={}),)])
def test_a_study_without_values_has_a_page(trials):
    page = render(Study(name="x", directory="d", metric="loss", trials=trials), "")
    assert "No trial was evaluated" in page and "<svg" not in page


def test_plain_json_names_the_best_run():
    values = STUDY.as_dict()
    assert values["best"]["run"] == "runs/study/trials/1"
    assert values["best"]["export"] == "runs/study/trials/1/export"
    counts = {"waiting": 1, "running": 0, "finished": 2, "pruned": 1, "failed": 1}
    assert values["trials"] == counts


def test_the_key_that_decides_matters_most_and_the_time_left_follows_the_trials():
    optuna = pytest.importorskip("optuna")
    random = np.random.default_rng(0)
    space = {
        "training.learning_rate": Dimension(low=1e-5, high=1e-4, log=True),
        "training.global_batch_size": Dimension(choices=[16, 32]),
    }
    drawn = {
        "training.learning_rate": optuna.distributions.FloatDistribution(1e-5, 1e-4, log=True),
        "training.global_batch_size": optuna.distributions.CategoricalDistribution([16, 32]),
    }
    study = optuna.create_study(direction="minimize")

    def summary():
        return summarise(
            study, name="s", directory="d", metric="loss", most=100, space=space, max_rows=500
        )

    for number in range(20):
        params = {
            "training.learning_rate": float(10 ** random.uniform(-5, -4)),
            "training.global_batch_size": int(random.choice([16, 32])),
        }
        value = 1 - 5e3 * params["training.learning_rate"] + 0.01 * random.normal()
        trial = optuna.trial.create_trial(params=params, distributions=drawn, value=value)
        trial.datetime_start = trial.datetime_complete - datetime.timedelta(seconds=60)
        study.add_trial(trial)
        if number == 2:
            assert summary().importance == {}
    study.enqueue_trial({})
    study.enqueue_trial({})
    made = summary()
    assert next(iter(made.importance)) == "training.learning_rate"
    assert made.importance["training.learning_rate"] > 0.8
    assert made.seconds_left == pytest.approx(120, abs=1)
    page = render(made, "")
    assert ">learning_rate matters most<" in page and "about 2 min 0 s" in page
    assert ">16</text>" in page and ">18</text>" not in page  # choices, not an axis of numbers
    assert "use at most 500 rows" in page
