"""Days for real, by a whole Airflow on this machine: retraining, scoring, an alarm, lineage."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from urllib.parse import quote

import pyarrow.parquet as pq
import pytest

from howdah import storage
from howdah.data.manifest import load_dataset
from tests import ROOT
from tests.support.rows.word_rows import write_rows
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.full, pytest.mark.timeout(1800)]

LIMIT = 900.0  # to detect a hang
DAILY, RETRAIN = "real_daily", "real_retrain"


def defaults(place, base: str) -> dict:
    """This installation's: a tiny model, days that are files."""
    return {
        "conn_id": "real_days",
        "run": {"name": "words"},
        "data": {
            "source": f"{place}/in/{{ds}}.csv", "dataset": str(place / "dataset"),
            "split": {"validation": 0.2, "test": 0.3}, "max_length": 32,
            "spark": {"master": "local[1]", "driver_memory": "1g"}, "dedup": {"near": False},
        },
        "model": {"base": base},
        "training": {
            "framework": "torch", "max_steps": 12, "learning_rate": 0.01, "logging_steps": 4,
            "global_batch_size": 32, "precision": "fp32", "threads_per_rank": 1,
        },
        "tracking": {"tensorboard": False},
        "gate": {"minimum": {"accuracy": 0.3}, "margin": -1.0},
        "publish": {"directory": str(place / "models")},
        "drift": {"min_rows": 20},
        "daily": {
            "first_pause_seconds": 1.0, "longest_pause_seconds": 1.0, "schedule": None,
            "on_data": False, "ready": f"{place}/in/{{ds}}.csv",
            "retrain": {"cooldown_hours": 100.0},
        },
    }  # fmt: skip


@pytest.fixture(scope="module")
def days(airflow_standalone, tmp_path_factory, tiny_model_dir):
    """The Airflow with both DAGs, and the place of everything."""
    airflow, place = airflow_standalone, tmp_path_factory.mktemp("days")
    (place / "in").mkdir()
    (place / "defaults.json").write_text(json.dumps(defaults(place, tiny_model_dir)))
    airflow.connection(
        "real_days",
        {
            "run_root": str(airflow.files), "files_url": airflow.files_url,
            "working_directory": str(place),
            "environment": {"HOWDAH_CACHE": str(place / "cache")},
        },
    )  # fmt: skip
    head = f'import os\nos.environ["HOWDAH_AIRFLOW_DEFAULTS"] = "{place / "defaults.json"}"\n'
    tail = (
        "\nfrom airflow.providers.openlineage.utils.selective_enable import enable_lineage\n"
        "enable_lineage(dag)\n"
    )
    for name in ("daily", "retrain"):
        text = (ROOT / "dags" / f"{name}.py").read_text()
        text = text.replace("from __future__ import annotations\n", "")
        airflow.add_dag(f"real_{name}", head + text.replace('"howdah_', '"real_') + tail)
    yield airflow, place
    for dag in (DAILY, RETRAIN):
        airflow.pause(dag, paused=True)


def states(airflow, dag, run):
    return {name: task["state"] for name, task in airflow.tasks(dag, run).items()}


def events(airflow, task: str, kind: str) -> list[dict]:
    """OpenLineage events of a task, `DAG.task`."""
    if not airflow.lineage.exists():
        return []
    emitted = [json.loads(line) for line in airflow.lineage.read_text().splitlines() if line]
    return [e for e in emitted if e["job"]["name"] == task and e["eventType"] == kind]


def names(datasets) -> dict[str, dict]:
    return {each["name"]: each for each in datasets}


def write_day(place, day: str, number: int) -> None:
    """Rows of one source, each day others."""
    lines = Path(write_rows(place / "rows.csv", 240 * number)).read_text("utf-8").splitlines()
    rows = [lines[0], *lines[1 + 240 * (number - 1) :]]
    (place / "in" / f"{day}.csv").write_text("\n".join([*rows, ""]))


def test_two_days_are_appended_and_published_and_one_that_drifts_raises_the_alarm(days):
    airflow, place = days
    frozen = None
    for number, day in enumerate(("2026-11-01", "2026-11-02"), 1):
        write_day(place, day, number)
        run = airflow.trigger(RETRAIN, {"partition": f"ds={day}"})
        airflow.wait_run(RETRAIN, run, LIMIT)
        done = states(airflow, RETRAIN, run)
        assert done.pop("approve") == "skipped"
        assert set(done.values()) == {"success"}, done
        published = airflow.xcom(RETRAIN, run, "publish")
        assert published["version"] == number
        dataset = load_dataset(str(place / "dataset"))
        assert [part.name for part in dataset.manifest.parts][-1] == f"ds={day}"
        tests = {(entry.name, entry.rows) for entry in dataset.manifest.splits["test"]}
        frozen = frozen or tests
        assert tests == frozen
        config = airflow.xcom(RETRAIN, run, "check", "config")
        assert config["model"]["init_from"] == (None if number == 1 else f"{place}/models/words@1")
    lineage_of_a_retraining(airflow, place, dataset)

    # ------------------------ other rows of the same source, which no training had: no alarm
    write_day(place, "2026-11-03", 3)
    run = airflow.trigger(DAILY, {"partition": "ds=2026-11-03"})
    airflow.wait_run(DAILY, run, LIMIT)
    done = states(airflow, DAILY, run)
    assert (done["drift"], done["alarm"], done["notify"]) == ("success", "skipped", "skipped")
    scored, judged = (airflow.xcom(DAILY, run, task) for task in ("score", "drift"))
    assert (scored["version"], scored["rows"], scored["partitions"][0]["errors"]) == (2, 240, 0)
    labels = Counter(pq.read_table(scored["output"]).column("label").to_pylist())
    assert set(labels) == {"sea", "sky"} and sum(labels.values()) == 240
    (one,) = judged["partitions"]
    assert (judged["alarm"], one["state"], one["columns"]) == (False, "ok", []), judged
    lineage_of_a_day(airflow, place, scored)

    # ------------------------------------- one that comes late, of other texts: the alarm
    airflow.pause(RETRAIN, paused=False)
    path = f"/dags/{DAILY}/dagRuns"
    body = {"dag_run_id": "of_a_date", "logical_date": "2026-11-04T00:00:00Z", "conf": {}}
    airflow.api("POST", path, json=body)
    airflow.wait_task(DAILY, "of_a_date", "partition", {"deferred"}, LIMIT)
    airflow.components.restart("triggerer")  # the wait survives it
    other = ["text,label", *(f"quite other words {n} {n * 7} in short,sea" for n in range(400))]
    (place / "in" / "2026-11-04.csv").write_text("\n".join([*other, ""]))
    airflow.wait_run(DAILY, "of_a_date", LIMIT)
    done = states(airflow, DAILY, "of_a_date")
    assert (done["alarm"], done["notify"]) == ("success", "skipped")
    raised = airflow.xcom(DAILY, "of_a_date", "alarm")
    assert raised["partitions"] == ["ds=2026-11-04"] and raised["columns"]
    assert airflow.links(DAILY, "of_a_date", "drift")["Drift"].endswith("/drift.html")

    # ----------------------------- the alarm starts a retraining, which the cool-down skips
    def started():
        runs = airflow.api("GET", f"/dags/{RETRAIN}/dagRuns")["dag_runs"]
        return [r for r in runs if r["run_type"] == "asset_triggered"]

    (retraining,) = wait_until(started, LIMIT)
    wait_until(lambda: airflow.state(RETRAIN, retraining["dag_run_id"]) == "success", LIMIT)
    done = states(airflow, RETRAIN, retraining["dag_run_id"])
    assert (done["check"], done["etl.build"], done["publish"]) == (
        "success",
        "skipped",
        "skipped",
    )
    assert storage.read_json(f"{place}/models/words/current.json")["version"] == 2


def lineage_of_a_retraining(airflow, place, dataset):
    """START and COMPLETE of the tasks that read and write."""
    etl = wait_until(lambda: events(airflow, f"{RETRAIN}.etl.build", "COMPLETE"))[-1]
    assert set(names(etl["inputs"])) == {f"{place}/in/2026-11-02.csv"}
    (made,) = etl["outputs"]
    assert (made["namespace"], made["name"]) == ("file", str(place / "dataset"))
    assert made["facets"]["version"]["datasetVersion"] == dataset.manifest.dataset_hash
    assert made["outputFacets"]["outputStatistics"]["rowCount"] > 0
    begun = events(airflow, f"{RETRAIN}.etl.build", "START")[-1]
    assert names(begun["outputs"])[str(place / "dataset")]["facets"].get("version") is None
    train = events(airflow, f"{RETRAIN}.train", "COMPLETE")[-1]
    assert {str(place / "dataset"), f"{place}/models/words"} <= set(names(train["inputs"]))
    publish = events(airflow, f"{RETRAIN}.publish", "COMPLETE")[-1]
    (model,) = publish["outputs"]
    assert model["facets"]["version"]["datasetVersion"] == "2"
    assert names(publish["inputs"]).keys() == names(train["outputs"]).keys()
    assert publish["run"]["facets"]["howdah"]["facts"]["version"] == "2"


def lineage_of_a_day(airflow, place, scored):
    """The same of a day that is scored and judged."""
    source = f"{place}/in/2026-11-03.csv"
    score, drift = (
        wait_until(lambda task=task: events(airflow, f"{DAILY}.{task}", "COMPLETE"))[-1]
        for task in ("score", "drift")
    )
    assert set(names(score["inputs"])) == {source, f"{place}/models/words"}
    model = names(score["inputs"])[f"{place}/models/words"]
    assert model["facets"]["version"]["datasetVersion"] == "2"
    (made,) = score["outputs"]
    assert made["name"] == scored["output"]
    assert made["outputFacets"]["outputStatistics"]["rowCount"] == 240
    assert set(names(drift["inputs"])) == {source} and not drift["outputs"]
    for task, done in (("score", score), ("drift", drift)):
        begun = events(airflow, f"{DAILY}.{task}", "START")[-1]
        assert begun["run"]["runId"] == done["run"]["runId"]


def test_a_task_that_fails_says_so_and_what_it_would_have_read(days):
    airflow, place = days
    (place / "in" / "bad.csv").write_text("text,label\n")
    run = airflow.trigger(DAILY, {"partition": "ds=bad", "model": str(place / "no-model")})
    airflow.wait_task(DAILY, run, "score", {"failed"}, LIMIT)
    failed = wait_until(lambda: events(airflow, f"{DAILY}.score", "FAIL"))[-1]
    assert f"{place}/in/bad.csv" in names(failed["inputs"])
    assert "errorMessage" in failed["run"]["facets"]
    path = f"/dags/{DAILY}/dagRuns/{quote(run)}/taskInstances/score"
    assert (
        airflow.api("GET", path)["try_number"] == 1
    )  # a model that is not there is not tried again
