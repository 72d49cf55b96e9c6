"""Studies whose workers and trainings are killed, stopped and pruned; processes that share one."""

from __future__ import annotations

import json
import os
import signal

import pytest

from howdah.core.processes import LIMITS as VARIABLE
from howdah.training.run.local_dir import RankRecord
from tests.runs.studies import Studies
from tests.support.waiting import wait_until
from tests.tuning.test_tune import studies  # noqa: F401 - a fixture
from tools.local_airflow.postgres import Postgres

full = pytest.mark.full

LONG = {"training.max_steps": 300, "training.logging_steps": 50, "evaluation.every_steps": 20}
"""Long enough to be stopped on the way, short enough to be finished afterwards."""


def attempts(study: Studies, number: int) -> list[dict]:
    return study.run_json(number)["attempts"]


@full
def test_a_killed_workers_trial_goes_on_in_another_process(studies):  # noqa: F811
    study = studies(tune={"trials": 1}, **LONG)
    first = study.start()
    study.wait_for_checkpoint(0)
    params = study.status()["all"][0]["params"]
    second = study.start("--join")
    second.wait_for("study tiny")
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    assert second.end() == 0, second.output()
    assert "attempt 2, from its newest checkpoint" in second.output()
    assert attempts(study, 0)[1]["resumed_at_step"] >= 4
    (trial,) = study.status()["all"]
    assert (trial["state"], trial["params"]) == ("finished", params)
    assert sorted(trial["evaluations"], key=int) == [str(n) for n in range(1, 16)]
    study.wait_until_nothing_is_left()


def test_after_its_worker_was_killed_the_same_command_goes_on_with_a_trial(studies):  # noqa: F811
    study = studies(tune={"trials": 1}, **LONG | {"training.max_steps": 100_000})
    first = study.start()
    study.wait_for_checkpoint(0)
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    second = study.start()
    wait_until(lambda: "resumed_at_step" in (*attempts(study, 0), {}, {})[1], 120)
    assert "attempt 2, from its newest checkpoint" in second.output()
    assert attempts(study, 0)[1]["resumed_at_step"] >= 4
    assert (study.lease(0, 1)["state"], study.lease(0, 2)["state"]) == ("held", "held")
    second.process.send_signal(signal.SIGINT)
    assert second.end() == 130, second.output()
    assert study.lease(0, 2)["state"] == "released"
    study.wait_until_nothing_is_left()


@full
def test_a_suspended_worker_gives_its_trial_up_when_it_wakes_up(studies, monkeypatch):  # noqa: F811
    monkeypatch.setenv(VARIABLE, json.dumps({"lease_seconds": 2.0}))
    study = studies(
        tune={"trials": 1},
        **LONG | {"training.max_steps": 100_000, "checkpoint.grace_seconds": 1.0},
    )
    first = study.start()
    study.wait_for_checkpoint(0)
    first.process.send_signal(signal.SIGSTOP)
    second = study.start("--join")
    try:
        second.wait_for("trial 0: its earlier training still runs")
    finally:
        first.process.send_signal(signal.SIGCONT)
    first.wait_for("taken over by another worker")
    wait_until(lambda: "resumed_at_step" in attempts(study, 0)[-1] and attempts(study, 0)[1:], 120)
    for worker in (first, second):
        worker.process.send_signal(signal.SIGINT)
    assert (first.end(), second.end()) == (130, 130), first.output() + second.output()
    assert attempts(study, 0)[1]["resumed_at_step"] >= 4
    study.wait_until_nothing_is_left()


@full
def test_a_killed_training_is_tried_again_and_then_given_up(studies):  # noqa: F811
    study = studies(tune={"trials": 1}, **LONG | {"training.max_steps": 100_000})
    worker = study.start()
    for attempt in (1, 2, 3):
        wait_until(lambda n=attempt: (study.trial(0) / "attempts" / f"{n}.json").exists(), 120)
        records = wait_until(lambda: RankRecord.read_all(str(study.trial(0))), 120)
        os.kill(records[0].pid, signal.SIGKILL)
        worker.wait_for(f"trial 0: {'lost' if attempt < 3 else 'failed'}")
    assert worker.end() == 6, worker.output()
    assert (
        "lost 3 times" in worker.output()
        and "no trial of the study has finished" in worker.output()
    )
    assert study.status()["trials"]["failed"] == 1
    assert [study.lease(0, number)["state"] for number in (1, 2, 3)] == ["lost"] * 3
    assert (study.study / "study.html").exists() and not (study.study / "best.json").exists()
    study.wait_until_nothing_is_left()


@full
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_saves_every_trial_and_the_same_command_goes_on(studies, number, code):  # noqa: F811
    study = studies(tune={"trials": 2, "parallel": 2}, **LONG)
    worker = study.start("--json")
    for trial in (0, 1):
        study.wait_for_checkpoint(trial)
    worker.process.send_signal(number)
    assert worker.end() == code, worker.output()
    study.wait_until_nothing_is_left()
    for trial in (0, 1):
        assert study.run_json(trial)["status"] == "interrupted"
        assert study.lease(trial, 1)["state"] == "released"
    saved = [study.steps_saved(trial)[0] for trial in (0, 1)]
    again = study.start()
    assert again.end() == 0, again.output()
    assert [attempts(study, trial)[1]["resumed_at_step"] for trial in (0, 1)] == saved
    assert study.status()["trials"]["finished"] == 2


@full
def test_a_trial_that_is_behind_is_pruned_in_order_and_keeps_its_checkpoint(studies):  # noqa: F811
    # The rows are few: by a high rate they are learnt by heart, and the loss on validation rises.
    low, high = 1e-7, 1e-2
    space = {"training.learning_rate": {"choices": [low, high]}}
    study = studies(
        tune={"space": space, "trials": 3, "pruner": "asha", "sampler": "random", "seed": 4}, **LONG
    )
    worker = study.start("--json")
    assert worker.end() == 0, worker.output()
    trials = study.status()["all"]
    assert [one["params"]["training.learning_rate"] for one in trials] == [low, high, high]
    assert [one["state"] for one in trials] == ["finished", "pruned", "pruned"]
    for n in (1, 2):
        assert study.run_json(n)["status"] == "pruned"
        assert study.steps_saved(n) and study.steps_saved(n)[0] < 300
        assert not (study.trial(n) / "export").exists()
    best = json.loads((study.study / "best.json").read_text())["best"]
    assert (best["trial"], best["params"]["training.learning_rate"]) == (0, low)
    study.wait_until_nothing_is_left()


@full
def test_what_every_trial_would_fail_by_ends_the_study(studies, tmp_path, tiny_model_dir):  # noqa: F811
    from tests.fixtures.dataset import build_dataset

    whole = build_dataset(str(tmp_path / "v=0"), model_dir=tiny_model_dir)
    shard = whole.shard_path(whole.manifest.splits["train"][0])
    with open(shard, "r+b") as file:
        file.seek(40)
        file.write(b"damaged")
    study = studies(tune={"trials": 3}, **{"data.dataset": whole.path})
    worker = study.start("--json")
    assert worker.end() == 3, worker.output()
    assert os.path.basename(shard) in worker.output() and "Traceback" not in worker.output()
    status = study.status()
    assert (status["trials"]["running"], status["trials"]["waiting"]) == (1, 2)
    assert study.lease(0, 1)["state"] == "released"


@pytest.fixture
def postgres(tmp_path):
    server = Postgres(tmp_path / "pg", durable=False).start()
    try:
        server.create_database("tune")
        path = tmp_path / "url"
        path.touch(mode=0o600)
        path.write_text(server.url("tune", driver="postgresql"))
        yield str(path)
    finally:
        server.stop()


@full
@pytest.mark.parametrize("kind", ["journal", "sqlite", "postgresql"])
def test_two_processes_share_a_study(studies, kind, tmp_path, request):  # noqa: F811
    where = {
        "journal": lambda: {},
        "sqlite": lambda: {"storage": f"sqlite:///{tmp_path}/study.db"},
        "postgresql": lambda: {"storage_url_file": request.getfixturevalue("postgres")},
    }[kind]()
    study = studies(tune={"trials": 4, **where}, **{"training.max_steps": 8})
    first = study.start()
    first.wait_for("study tiny")
    second = study.start("--join")
    assert (first.end(), second.end()) == (0, 0), first.output() + second.output()
    assert study.status()["trials"]["finished"] == 4
    assert sorted(os.listdir(study.study / "leases")) == [f"{n}.1.json" for n in range(4)]
    for number in range(4):
        began = [f"trial {number}: training." in one.output() for one in (first, second)]
        assert sorted(began) == [False, True]
    third = study.start()  # nothing is left to do
    assert third.end() == 0
    assert "best: trial" in third.output()


@full
@pytest.mark.timeout(900)
def test_twenty_trials_killed_twice_end_with_a_published_best(studies, tmp_path):  # noqa: F811
    """The command of all workers is killed by SIGKILL twice; the same command goes on each time."""
    study = studies(
        tune={"trials": 20, "parallel": 2, "publish": True},
        **{"training.max_steps": 8, "publish.directory": str(tmp_path / "models")},
    )
    begun = 0
    for trial in (3, 9):
        worker = study.start()
        worker.wait_for(f"trial {trial}: training.")
        os.kill(worker.process.pid, signal.SIGKILL)
        worker.process.wait()
        study.wait_until_nothing_is_left()
        status = study.status()["trials"]
        assert begun <= status["finished"] < 20
        begun = status["finished"]
    assert begun > 0
    last = study.start("--json")
    assert last.process.wait(600) == 0, last.output()
    status = study.status()
    assert status["trials"]["finished"] == 20 and status["trials"]["failed"] == 0
    values = [study.run_json(n)["metrics"]["validation"]["loss"] for n in range(20)]
    assert status["best"]["value"] == min(values)
    # What was being trained at a kill went on under the trial's next lease; the others have one.
    leases = [name.split(".")[0] for name in os.listdir(study.study / "leases")]
    assert set(leases) == {str(n) for n in range(20)} and 22 <= len(leases) <= 24
    info = json.loads((tmp_path / "models" / "tiny" / "v=1" / "howdah.json").read_text())
    assert info["run_id"] == study.run_json(status["best"]["trial"])["run_id"]
    assert os.listdir(tmp_path / "models" / "tiny" / "history") == ["000001.json"]
    study.wait_until_nothing_is_left()


@full
def test_a_second_process_that_would_begin_the_same_study_is_told_to_join(studies):  # noqa: F811
    study = studies(tune={"trials": 1}, **LONG)
    study.start().wait_for("study tiny")
    second = study.start()
    assert second.end() == 2
    assert "--join" in second.output()
