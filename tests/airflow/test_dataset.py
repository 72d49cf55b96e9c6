"""The check that the dataset has what the run needs of it."""

from __future__ import annotations

import pytest

from howdah.config.model import Config

pytestmark = pytest.mark.airflow

MADE = {
    "dataset": "data/v=1", "unchanged": False, "labels": ["cat", "dog"], "report": "data/r.html",
    "rows": {"train": 90, "validation": 5, "test": 5}, "drops": {"too_short": 3, "duplicate": 40},
}  # fmt: skip


def config(**gate) -> dict:
    sections = Config().model_dump(mode="json")
    return sections | {"gate": sections["gate"] | gate}


def made(**changes) -> dict:
    return MADE | changes


def run(manifest, **gate):
    from howdah.airflow.dataset import DatasetOperator

    return DatasetOperator(task_id="quality", config=config(**gate), made=manifest).execute({})


def test_the_datasets_figures_are_returned(caplog):
    assert run(made()) == {
        "dataset": "data/v=1", "state": "written", "rows": MADE["rows"], "drops": MADE["drops"],
        "report": "data/r.html",
    }  # fmt: skip
    assert run(made(unchanged=True))["state"] == "unchanged"
    assert run(None)["state"] == "as it is"


def test_what_was_expected_of_the_dataset_is_logged_with_its_figures(caplog, capsys):
    caplog.set_level("INFO")
    results = [
        {"key": "min_rows", "bound": 50, "found": 100, "met": True, "detail": "in all splits"},
        {
            "key": "max_shift.labels",
            "bound": 0.1,
            "found": None,
            "met": True,
            "detail": "no parent",
        },
    ]
    assert run(made(expectations={"parent": None, "found": results}))["state"] == "written"
    # Airflow's logger is the standard one until its own is configured, by whatever ran before.
    log = caplog.text + capsys.readouterr().out
    assert "expected min_rows at least 50: 100 (in all splits)" in log
    assert "max_shift.labels at most 0.1: not judged (no parent)" in log


@pytest.mark.parametrize(
    ("changes", "gate", "message"),
    [
        ({"rows": {"validation": 5, "test": 5}}, {}, "train has no rows"),
        ({"labels": ["cat"]}, {}, "at least two labels"),
        (
            {"rows": {"train": 9, "test": 0}},
            {"minimum": {"accuracy": 0.5}},
            "the split that the gate judges, test, has no rows",
        ),
        (
            {"rows": {"train": 9}},
            {"better_than_published": True},
            "the split that the gate judges, test, has no rows",
        ),
    ],
)
def test_a_dataset_with_which_the_run_cannot_succeed_is_refused_without_a_retry(
    changes, gate, message
):
    from airflow.sdk.exceptions import AirflowFailException

    with pytest.raises(AirflowFailException) as caught:
        run(made(**changes), **gate)
    assert message in str(caught.value)
    assert "data/v=1" in str(caught.value)


def test_a_split_that_the_run_does_not_use_may_be_empty():
    assert run(made(rows={"train": 9}))["state"] == "written"
