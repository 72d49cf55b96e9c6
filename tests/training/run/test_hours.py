"""Hours that a run has used: of attempts, of applications, and YARN's figures in run.json."""

import json

import pytest

from howdah import storage
from howdah.config.loader import from_dict
from howdah.errors import NotFound
from howdah.models.runs import applications, hours
from howdah.models.runs.command import VARIABLE, began_by, shown_command
from howdah.models.runs.run_json import RunFile


def attempt(number: int, seconds: float | None, cpu: float | None, gpus: int, **more) -> dict:
    ended = {} if seconds is None else {"ended": "2026-11-01T01:00:00+00:00", "seconds": seconds}
    usage = {} if cpu is None else {"usage": {"cpu_seconds": cpu, "gpus": gpus, "of": "all ranks"}}
    return {"attempt": number, "started": "2026-11-01T00:00:00+00:00", **ended, **usage, **more}


def report(vcore: int, mib: int, gpu: int = 0, **more) -> dict:
    return {
        "state": "FINISHED", "elapsedTime": 3_600_000, "vcoreSeconds": vcore, "memorySeconds": mib,
        "finishedTime": 1_000, "resourceSecondsMap": {"entry": [
            {"key": "memory-mb", "value": str(mib)}, {"key": "vcores", "value": str(vcore)},
            *([{"key": "yarn.io/gpu", "value": str(gpu)}] if gpu else []),
        ]}, **more,
    }  # fmt: skip


def test_attempts_are_summed_and_what_was_not_measured_is_not_zero():
    run = {"attempts": [attempt(1, 3600, 7200, 2), attempt(2, None, None, 0),
                        attempt(3, 1800, 3600, 2)]}  # fmt: skip
    summed = hours.of_run(run)
    assert (summed["wall"], summed["cpu"], summed["gpu"]) == (1.5, 3.0, 3.0)
    assert (summed["vcore"], summed["gib"], summed["complete"]) == (None, None, False)
    assert [one["wall"] for one in summed["attempts"]] == [1.0, None, 0.5]
    nothing = hours.of_run({})
    assert (nothing["wall"], nothing["complete"]) == (None, True)
    assert hours.shown(summed) == "1.50 h wall, 3.00 h CPU, 3.00 GPU h (not final)"


def test_of_applications_yarn_s_figures_count():
    run = {"attempts": [attempt(1, 3600, 60, 1, submission="application_1_1")], "hours": {
        "applications": {
            "application_1_1": hours.of_application(report(7200, 1024 * 3600, 1800), final=True),
            "application_1_0": hours.of_application(report(3600, 0), final=True)}}}  # fmt: skip
    summed = hours.of_run(run)
    assert (summed["vcore"], summed["gib"], summed["gpu"]) == (3.0, 1.0, 0.5)
    assert summed["complete"]
    assert hours.of_run(run | {"hours": summed}) == summed  # computed again, it stays


@pytest.mark.parametrize("entries", [
    {"entry": {"key": "yarn.io/gpu", "value": "3600"}}, {"yarn.io/gpu": 3600},
    {"entry": [{"key": "yarn.io/gpu", "value": 3600}]},
])  # fmt: skip
def test_gpus_in_each_form_that_yarn_writes(entries):
    used = hours.of_application(report(1, 1) | {"resourceSecondsMap": entries}, final=True)
    assert used["gpu"] == 1.0


class Manager:
    """A ResourceManager that answers from a table, and counts."""

    def __init__(self, **reports):
        self.reports, self.looked_up = reports, []

    def application(self, name: str) -> dict:
        self.looked_up.append(name)
        if name not in self.reports:
            raise NotFound("YARN has no such application or resource", where=name)
        return self.reports[name]

    def clock(self) -> float:
        return 1_000.0


def test_the_figures_of_all_applications_come_into_run_json_once(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, "howdah submit -c a.yaml")
    run = str(tmp_path)
    for number in (1, 2):
        applications.note_submission(run, f"application_1_{number}")
    manager = Manager(application_1_1=report(3600, 0), application_1_2=report(7200, 0))
    assert applications.complete(manager, run) is None  # the first rank has never begun
    file = RunFile(run)
    config = from_dict({"run": {"directory": run}})
    file.begin(config, world_size=2, attempt=1, submission="application_1_2")
    file.end("finished", None)
    completed = applications.complete(manager, run)
    assert completed["vcore"] == 3.0 and completed["complete"]
    written = storage.read_json(f"{run}/run.json")
    assert written["hours"] == completed
    assert written["attempts"][0]["command"] == "howdah submit -c a.yaml"
    request_count = len(manager.looked_up)
    before = storage.read_bytes(f"{run}/run.json")
    assert applications.complete(Manager(), run) == completed  # also if YARN has forgotten them
    assert (
        storage.read_bytes(f"{run}/run.json") == before and len(manager.looked_up) == request_count
    )


def test_a_run_json_of_a_live_attempt_is_left_alone(tmp_path):
    run = str(tmp_path)
    file = RunFile(run)
    file.begin(from_dict({"run": {"directory": run}}), world_size=1, attempt=1,
               submission="application_1_3")  # fmt: skip
    before = storage.read_bytes(f"{run}/run.json")
    manager = Manager(application_1_3=report(10, 0, state="RUNNING"))
    assert applications.complete(manager, run)["complete"] is False
    assert storage.read_bytes(f"{run}/run.json") == before


def test_howdah_train_adds_what_rank_0_could_not_know(tmp_path):
    file = RunFile(str(tmp_path))
    file.begin(from_dict({"run": {"directory": str(tmp_path)}}), world_size=2, attempt=1)
    file.gpus = 2
    file.end("failed", "x")
    usage = file.values["attempts"][0]["usage"]
    assert usage["of"] == "rank 0" and usage["gpus"] == 2
    again = RunFile(str(tmp_path))
    again.used(cpu_seconds=usage["cpu_seconds"] + 36, gpus=None, of="howdah train and its rank")
    again.used(cpu_seconds=1e-3, gpus=None, of="less")
    [one] = storage.read_json(str(tmp_path / "run.json"))["attempts"]
    assert one["usage"] == {"cpu_seconds": round(usage["cpu_seconds"] + 36, 3), "gpus": 2,
                            "of": "howdah train and its rank"}  # fmt: skip


def test_the_command_has_no_secret(monkeypatch):
    words = ["/opt/bin/howdah", "train", "--set", "a.password=hunter2", "--set", "b={x: 1}"]
    shown = shown_command(words)
    assert "hunter2" not in shown and shown.startswith("howdah train --set a.password=")
    assert "'b={x: 1}'" in shown
    yaml = ["howdah", "etl", "--set", "data.spark.conf={fs.s3a.secret.key: hunter2}"]
    assert shown_command(yaml) == "howdah etl --set data.spark.conf=***left-out***"
    for program, name in (("/a/howdah/cli/__main__.py", "howdah"), ("/b/training/__main__.py",
                          "python -m howdah.training")):  # fmt: skip
        assert shown_command([program, "x"]) == f"{name} x"
    monkeypatch.setenv(VARIABLE, shown)
    assert began_by() == shown
    assert json.dumps(shown)
