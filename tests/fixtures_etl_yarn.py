"""The ETL on the mini cluster's YARN: small containers, a small source, real commands."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from howdah import config as config_module
from howdah import storage
from howdah.manifest import load_dataset
from howdah.record import RecordLayout, decode_example, read_frames
from tests.fixtures_spark import SHORT_JVM

SPARK = {
    "master": "yarn",
    "executors": 1,
    "executor_memory": "512m",
    "executor_cores": 2,
    "driver_memory": "640m",
    # The defaults are for clusters: 200 shuffle partitions would be most of a small run's time.
    "conf": {
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.ui.enabled": "false",
        **{f"spark.{who}.extraJavaOptions": SHORT_JVM for who in ("driver", "executor", "yarn.am")},
    },
}


class YarnEtl:
    """`python -m etl` against the cluster, in processes of their own: one Spark for each."""

    def __init__(self, cluster, directory, base, tmp_path):
        self.cluster = cluster
        self.directory = directory
        self.base = base
        self.place = tmp_path
        self.dataset = storage.join(directory, "dataset")

    def put_rows(self, count, name="rows.csv", more=()):
        """A CSV on HDFS with `count` good rows and `more` lines; returns its URL."""
        lines = [f"text of row {n} and {n * 7919},{'ab'[n % 2]}" for n in range(count)]
        path = storage.join(self.directory, name)
        storage.write_whole(path, "\n".join(["text,label", *lines, *more, ""]).encode())
        return path

    def config(self, *, spark=None, **data):
        """Path of a configuration; `spark` is laid over SPARK."""
        settings = {**SPARK, **(spark or {})}
        settings["conf"] = {**SPARK["conf"], **(spark or {}).get("conf", {})}
        config = config_module.from_dict(
            {
                "data": {"dataset": self.dataset, "spark": settings, **data},
                "model": {"base": self.base},
            }
        )
        path = self.place / f"run-{time.monotonic_ns()}.yaml"
        path.write_text(config_module.dump_yaml(config))
        return str(path)

    def start(self, config, **env):
        """The command, started; stdout and stderr as pipes."""
        return subprocess.Popen(
            [sys.executable, "-m", "etl", "--config", config, "--json"],
            env={**self.cluster.env, **env}, text=True, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def run(self, config, **env):
        """(exit code, its JSON object, stderr)."""
        return self.finish(self.start(config, **env))

    def finish(self, process, seconds=280):
        """The same of one that was started."""
        try:
            out, err = process.communicate(timeout=seconds)
        finally:
            process.kill()
        lines = [line for line in out.splitlines() if line.startswith("{")]
        assert len(lines) <= 1, out
        return process.returncode, json.loads(lines[0]) if lines else None, err

    def applications(self, *, states="NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"):
        """Lines of `yarn application -list`."""
        done = self.cluster.run("yarn", "application", "-list", "-appStates", states)
        return [
            line for line in done.stdout.splitlines() if line.strip().startswith("application_")
        ]

    def state(self, application):
        """YARN's final state of an application."""
        done = self.cluster.run("yarn", "application", "-status", application)
        return next(
            line.split(":")[1].strip() for line in done.stdout.splitlines() if "Final-State" in line
        )

    def left(self):
        """Names in the dataset's version directories."""
        if not storage.exists(self.dataset):
            return []
        return [
            f"{version.name}/{entry.name}"
            for version in storage.list_dir(self.dataset)
            for entry in storage.list_dir(version.path, unfinished=True)
        ]


def wait_for(condition, process=None, seconds=240):
    """Until `condition()` is true; fails when the process ends first or it takes too long."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        if process is not None and process.poll() is not None:
            pytest.fail(f"it ended with {process.returncode}: {process.stderr.read()[-3000:]}")
        if time.monotonic() > deadline:
            pytest.fail("it never came to that")
        time.sleep(0.2)
    return found


def whole(path, rows):
    """Each row of the source is in the dataset once, and nothing lies beside what it lists."""
    dataset = load_dataset(path)
    layout = RecordLayout(ids_dtype=dataset.manifest.record.ids_dtype)
    ids, named = [], {"manifest.json", "report.json", "report.html"}
    for entries in dataset.manifest.splits.values():
        for entry in entries:
            data = storage.read_bytes(dataset.shard_path(entry))
            assert len(data) == entry.bytes
            ids += [decode_example(p, layout).id for _, p in read_frames(data, entry.name)]
            named |= {entry.name, entry.index_name}
    assert len(ids) == len(set(ids)) == rows
    there = {e.name for e in storage.list_dir(path, unfinished=True) if not e.is_dir}
    assert there == named


def containers(mark, main):
    """Pids of JVMs of a main class whose working directory, which YARN gave, has `mark` in it: an
    application, a cluster's directory."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            try:
                line = (place / "cmdline").read_bytes().decode(errors="replace")
                if mark in os.readlink(place / "cwd") and main in line:
                    found.append(int(place.name))
            except OSError:
                continue
    return found


@pytest.fixture
def yarn_etl(healthy_cluster, hdfs_dir, hadoop_env, tiny_model_dir, tmp_path):
    """A YarnEtl in a fresh HDFS directory; no application is left when the test has passed."""
    made = YarnEtl(healthy_cluster, hdfs_dir, tiny_model_dir, tmp_path)
    yield made
    left = made.applications()
    healthy_cluster.end_applications()
    assert left == []
