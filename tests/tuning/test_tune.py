"""`howdah tune` as a process: one small study to its end, and refusals (faults: test_faults.py)."""

from __future__ import annotations

import json

import pytest

from tests.runs.studies import Studies, configuration, run


@pytest.fixture
def studies(tmp_path, tiny_dataset, tiny_model_dir):
    """Makes a study; its workers are ended after the test."""
    made: list[Studies] = []

    def go(**settings) -> Studies:
        sections = configuration(
            tmp_path, dataset=tiny_dataset.path, base=tiny_model_dir, **settings
        )
        made.append(Studies(tmp_path, sections))
        return made[-1]

    yield go
    for each in made:
        each.close()


def test_a_study_of_two_trials_at_once_names_and_publishes_the_best(studies, tmp_path):
    study = studies(
        tune={"parallel": 2, "publish": True},
        **{"training.max_steps": 8, "publish.directory": str(tmp_path / "models")},
    )
    done = run(["--config", str(study.config), "--json"])
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    best = json.loads((study.study / "best.json").read_text())["best"]
    assert made["best"] == best and made["trials"]["finished"] == 2
    values = [study.run_json(number)["metrics"]["validation"]["loss"] for number in (0, 1)]
    assert best["value"] == min(values)
    assert best["trial"] == values.index(min(values))
    for number in (0, 1):
        assert study.run_json(number)["status"] == "finished"
        assert study.lease(number, 1)["state"] == "released"
    status = study.status()
    assert status["best"] == best
    assert [len(trial["evaluations"]) for trial in status["all"]] == [2, 2]
    # The study's model is <publish.directory>/<run.name>, the best trial's weights.
    assert made["published"]["path"] == str(tmp_path / "models" / "tiny" / "v=1")
    info = json.loads((tmp_path / "models" / "tiny" / "v=1" / "howdah.json").read_text())
    assert info["run_id"] == study.run_json(best["trial"])["run_id"]
    page = (study.study / "study.html").read_text()
    assert f"Best: trial {best['trial']}" in page and page.count("<svg") == 5
    for text, name in (("Best run", "report.html"), ("Its model card", "export/README.md")):
        assert f'<a href="trials/{best["trial"]}/{name}">{text}</a>' in page


def refusal(done) -> dict:
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout)


def test_bad_studies_are_refused_with_one_message(studies):
    study = studies(tune={"space": {"training.learning_rate": {"low": 0.1, "high": 3}}})
    done = run(["--config", str(study.config), "--json"])
    error = refusal(done)
    assert done.returncode == 2 and "learning_rate=3" in str(error["problems"])
    assert not study.study.exists()


def test_what_is_not_there_cannot_be_joined_or_shown(studies):
    study = studies()
    for option in ("--join", "--status"):
        done = run(["--config", str(study.config), option, "--json"])
        assert done.returncode == 2 and "does not exist" in refusal(done)["what"]


def test_a_lock_that_cannot_be_written_is_not_taken_for_another_process(studies):
    study = studies()
    (study.study / ".tune.lock").mkdir(parents=True)
    done = run(["--config", str(study.config), "--json"])
    error = refusal(done)
    assert done.returncode == 5 and "another process" not in error["what"]


def test_a_runs_directory_is_no_studys(studies):
    study = studies()
    study.study.mkdir()
    (study.study / "run.json").write_text("{}")
    done = run(["--config", str(study.config), "--json"])
    assert done.returncode == 2 and "training run" in refusal(done)["what"]
