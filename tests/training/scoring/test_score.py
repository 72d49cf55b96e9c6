"""`howdah score` with a real Spark and metastore: skipping, replacing, errors, two models."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from howdah.data.encode import Encoder
from training.model.pretrained import load_base
from training.serving.export import export
from training.serving.run_info import RunInfo

pytestmark = pytest.mark.spark

# One session for all calls, which counts the jobs that Spark runs: STEPS (JSON) on stdin.
SESSION = """
import json, sys
from howdah.config import loader
from howdah.errors import HowdahError
from howdah.spark.session import session
from training.scoring.score import Request, score
from training.scoring.selection import Selection

config = loader.from_dict(json.loads(sys.argv[1]))
with session(config.data.spark, hive=True) as spark:
    jobs = lambda: len(spark.sparkContext.statusTracker().getJobIdsForGroup(None))
    for step in json.load(sys.stdin):
        before, lines = jobs(), []
        if isinstance(step, str):
            made = [row.asDict() for row in spark.sql(step).collect()]
        else:
            own = step.pop("config", {})
            step["selection"] = Selection(**{k: tuple(v) if isinstance(v, list) else v
                                             for k, v in step["selection"].items()})
            try:
                made = score(Request(**step, framework="torch"), config.model_copy(update={
                    name: getattr(config, name).model_copy(update=values)
                    for name, values in own.items()}), progress=lines.append)
            except HowdahError as error:
                made = error.as_dict()
        print("DONE", json.dumps({"made": made, "jobs": jobs() - before, "lines": lines},
                                 default=str), flush=True)
"""
SOURCE, OUTPUT = "texts", "scored"
ROWS = {
    "2026-11-01": [("a", "the cat"), ("b", "of"), ("c", None), ("d", "")],
    "2026-11-02": [("e", "the cat"), ("f", "in to " * 40)],
}


def inserted(day, rows):
    values = ", ".join(f"('{key}', {'NULL' if t is None else repr(t)})" for key, t in rows)
    return f"INSERT INTO {SOURCE} PARTITION (ds='{day}') VALUES {values}"


def made_model(directory, base_dir, run_id, seed) -> str:
    base = load_base(base_dir)
    rng = np.random.default_rng(seed)
    head = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in base.family.head_shapes(base.config, 3).items()
    }
    info = RunInfo(
        run_id=run_id, max_length=16, clean={"whitespace": True}, framework="torch",
        base={"source": "tiny", "hash": base.hash}, tokenizer_hash=Encoder.load(base_dir).hash,
        columns={"text": "words", "id": "key", "label": "label"},
    )  # fmt: skip
    return export(
        directory, weights=base.weights | head, base_config=base.config,
        tokenizer_files=base.tokenizer_files, label_names=["a", "b", "c"], run_info=info,
    )  # fmt: skip


def put_version(root, number, exported) -> None:
    """Make an export version `number` of a published model, and its current one."""
    shutil.copytree(exported, root / f"v={number}")
    (root / f"v={number}" / "manifest.json").write_text("{}")
    (root / "history").mkdir(exist_ok=True)
    current = json.dumps({"version": number})
    (root / "history" / f"{number:06d}.json").write_text(current)
    (root / "current.json").write_text(current)


class Place:
    """A directory with a metastore, models and a configuration."""

    def __init__(self, directory, base_dir):
        self.directory = directory
        self.models = directory / "models"
        one = made_model(str(directory / "one"), base_dir, "run-1", 1)
        put_version(self.models / "news", 1, one)
        self.other = made_model(str(directory / "other"), base_dir, "run-2", 2)
        conf = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{directory}/log"}
        conf["spark.sql.shuffle.partitions"] = "1"
        (directory / "log").mkdir()
        self.config = {
            "data": {"spark": {"master": "local[1]", "driver_memory": "1g", "conf": conf}},
            "publish": {"directory": str(self.models)},
            "score": {"max_error_fraction": 0.5},
        }
        (directory / "c.yaml").write_text(json.dumps(self.config))
        root = os.getcwd()
        self.env = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": root}

    def steps(self, *steps):
        """What each step made: {made, jobs, lines}."""
        done = subprocess.run(
            [sys.executable, "-c", SESSION, json.dumps(self.config)], input=json.dumps(steps),
            cwd=self.directory, env=self.env, capture_output=True, text=True, timeout=280,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        lines = [line for line in done.stdout.splitlines() if line.startswith("DONE ")]
        return [json.loads(line.removeprefix("DONE ")) for line in lines]

    def words(self, *more, model="news"):
        fixed = ["--model", model, "--source", SOURCE, "--output", OUTPUT]
        return [
            sys.executable, "-m", "howdah.cli", "score", "--config", "c.yaml", *fixed,
            "--framework", "torch", *more, "--json",
        ]  # fmt: skip

    def run(self, *more, model="news"):
        """(exit code, the JSON object, stderr) of the command."""
        done = subprocess.run(
            self.words(*more, model=model), cwd=self.directory, env=self.env,
            capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return done.returncode, json.loads(lines[-1]) if lines else None, done.stderr

    def applications(self):
        """Spark applications that have run here."""
        return sorted(os.listdir(self.directory / "log"))

    def rows(self):
        """All scored rows by (day, model, id); each once."""
        table = pq.read_table(str(self.directory / "spark-warehouse" / OUTPUT)).to_pylist()
        found = {(str(row["ds"]), row["model"], row["id"]): row for row in table}
        assert len(found) == len(table)
        return found


@pytest.fixture
def place(tmp_path, tiny_model_dir):
    return Place(tmp_path, tiny_model_dir)


CREATED = f"CREATE TABLE {SOURCE} (key string, words string) PARTITIONED BY (ds string)"


def asked(model="news", **more):
    step = {"model": model, "source": SOURCE, "output": OUTPUT, **more}
    step.setdefault("selection", {"since": "ds=2026-11-01"})
    return step


def states(step):
    return [(one["partition"][-2:], one["state"]) for one in step["made"]["partitions"]]


def test_each_partition_is_scored_once_by_each_model(place):
    made = place.steps(
        f"{CREATED} STORED AS PARQUET",
        *(inserted(day, rows) for day, rows in ROWS.items()),
        f"ALTER TABLE {SOURCE} ADD PARTITION (ds='2026-11-03')",
        asked(),
        asked(),
        inserted("2026-11-02", [("g", "of in")]),
        asked(),
        asked(force=True, config={"score": {"max_error_fraction": 0.1}}),
        asked(model=str(place.directory / "other"), selection={"partitions": ["ds=2026-11-02"]}),
        asked(selection={"partitions": ["ds=2026-11-09"]}),
        asked(output="texts_day", selection={"partitions": ["ds=2026-11-02"]}),
        f"ALTER TABLE {OUTPUT} DROP PARTITION (ds='2026-11-03', model='news')",
    )[4:]
    first, second, _, third, strict, other, missing, _, _ = made
    assert [state for _, state in states(first)] == ["scored"] * 3, first
    by_day = {one["partition"]: one for one in first["made"]["partitions"]}
    assert [by_day[f"ds=2026-11-0{n}"]["rows"] for n in (1, 2, 3)] == [4, 2, 0]
    assert by_day["ds=2026-11-01"]["errors"] == 2
    assert any("the partition has no rows" in line for line in first["lines"])
    assert first["made"]["workers"]["opened"] == 1 and first["made"]["version"] == 1
    # The second call starts no job, and so no stage.
    assert second["jobs"] == 0 and first["jobs"] > 0
    assert [state for _, state in states(second)] == ["skipped"] * 3
    assert second["made"]["workers"] is None
    assert states(third) == [("01", "skipped"), ("02", "scored"), ("03", "skipped")]
    # Too many errors: that partition stays, the others are done.
    error = strict["made"]
    assert error["error"] == "TooManyErrors" and error["exit_code"] == 3
    assert "2 of 4 rows" in error["got"] and "the text is null: 1 (id c)" in error["got"]
    assert states(other) == [("02", "scored")] and other["made"]["model"] == "run-2"
    assert "ds=2026-11-03, ds=2026-11-02" in missing["made"]["expected"]

    rows = place.rows()
    assert [key for key in rows if key[0] == "2026-11-01"] == [
        ("2026-11-01", "news", key) for key in "abcd"
    ]
    assert {key[1] for key in rows if key[0] == "2026-11-02"} == {"news", "run-2"}
    one = rows["2026-11-01", "news", "a"]
    scores = dict(one["scores"])
    best, second_best = sorted(scores.values(), reverse=True)[:2]
    assert one["score"] == best == scores[one["label"]]
    assert one["margin"] == pytest.approx(best - second_best, abs=1e-6)
    assert (one["model_version"], one["run_id"], one["error"]) == (1, "run-1", None)
    assert rows["2026-11-01", "news", "c"]["error"] == "the text is null"
    assert rows["2026-11-01", "news", "d"]["error"] == "the text is empty"
    assert rows["2026-11-01", "news", "d"]["label"] is None
    marker = place.models / "news/scored/scored/ds=2026-11-02/done.json"
    assert json.loads(marker.read_text())["rows"] == 3

    # As a command: what is done is found out without any Spark application.
    before = place.applications()
    code, answer, err = place.run("--partition", "ds=2026-11-02", "--partition", "ds=2026-11-01")
    assert code == 0, err
    assert [one["state"] for one in answer["partitions"]] == ["skipped"] * 2
    assert place.applications() == before and len(before) == 1
    assert "ds=2026-11-02: done before, 3 rows" in err and "v=1" in err
