"""The demo on a real, small Hadoop: Hive table -> ETL -> training -> scored partition, on YARN.

Real HDFS, YARN and Hive metastore daemons run on this machine's loopback
(`python -m tools.minicluster`); only addresses differ on your cluster (docs/operations.md). Every
step is a command that a user can type as well, and is shown before it runs.

    python -m tools.demo.cluster --framework tensorflow|torch
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

from howdah import storage
from tools import minilm
from tools.demo import steps, yarn
from tools.demo.steps import Clock, say

TABLE = "howdah_demo.docstrings"
SCORED = "howdah_demo.scored"
PARTITION = "part=p0"
CLUSTER_DIRECTORY = "build/minicluster"


def cluster_overrides(root: str) -> tuple[str, ...]:
    """Overrides of the demo on one machine: the source of the rows, and the paths.

    Args:
        root: directory on HDFS for all output.
    """
    return (
        f"data.source={TABLE}",
        "data.format=hive",
        f"data.dataset={root}/dataset",
        "data.columns.id=id",
        "data.spark.master=yarn",
        "data.spark.deploy_mode=cluster",
        # Sized for two cores.
        "data.spark.driver_memory=2g",
        "data.spark.executors=2",
        "data.spark.executor_memory=1g",
        "data.spark.executor_cores=1",
    )


def start_cluster(directory: str) -> dict:
    """Start the cluster, or use a running one; return the JSON object of `start --json`."""
    options = ["start", "--metastore", "--directory", directory, "--json"]
    return json.loads(steps.module("tools.minicluster", *options, capture=True))


def put_base_model(base: str, target: str) -> None:
    """Copy a model directory to HDFS; existing files of the same size are kept."""
    for entry in storage.list_dir(base):
        path = storage.join(target, entry.name)
        if not storage.exists(path) or storage.size(path) != entry.size:
            storage.upload(entry.path, path)
    say(f"base model: {target}")


def run(arguments: argparse.Namespace, cluster: dict, clock: Clock) -> None:
    """Run all steps on a running cluster."""
    framework, overrides = arguments.framework, arguments.set
    os.environ.update(cluster["environment"])
    root = f"{cluster['hdfs_url']}/howdah-demo"
    run_directory = f"{root}/runs/{framework}-{time.strftime('%Y%m%d-%H%M%S')}"

    clock.step("base model")
    base, is_pretrained = minilm.base_model(say)
    put_base_model(base, f"{root}/models/{storage.name(base)}")
    base = f"{root}/models/{storage.name(base)}"

    clock.step(f"a Hive table of docstrings: {TABLE}")
    steps.module("tools.demo.table", TABLE, *arguments.packages)

    options = steps.settings(run_directory, base, framework, [*cluster_overrides(root), *overrides])
    clock.step("ETL as a YARN application: Hive table -> TFRecords on HDFS")
    steps.howdah(["etl", *options])

    on_yarn = [w for o in yarn.overrides(arguments.np) for w in ("--set", o)]
    clock.step(f"training as a YARN application: {framework}, {arguments.np} workers")
    steps.howdah(["submit", *options, *on_yarn, "--wait"])
    result = storage.read_json(f"{run_directory}/run.json")

    clock.step("the same as an elastic job, which loses a worker")
    elastic_directory = f"{run_directory}-elastic"
    elastic = (
        "run.name=demo-elastic",
        f"run.directory={elastic_directory}",
        f"training.max_steps={arguments.elastic_steps}",
        "evaluation.max_rows=200",
        "job.min_workers=1",
        "job.commit_every=5",
    )
    yarn.train_and_lose_a_worker(
        [*options, *on_yarn, *(w for o in elastic for w in ("--set", o))],
        elastic_directory,
        at_step=arguments.elastic_steps // 4,
    )
    steps.howdah(["ps", "--all"])

    clock.step("sample prediction from the export on HDFS")
    texts = "".join(text + "\n" for text in steps.SAMPLES)
    predictions = steps.howdah(
        ["predict", "--model", f"{run_directory}/export", "--stdin"], stdin=texts, capture=True
    )

    clock.step(f"scoring as a YARN application: {PARTITION} of {TABLE} -> {SCORED}")
    scored = json.loads(
        steps.howdah(
            [
                "score", *options, "--model", run_directory, "--source", TABLE,
                "--partition", PARTITION, "--output", SCORED, "--json",
            ],
            capture=True,
        )
    )  # fmt: skip
    pages = f"{run_directory}/drift"
    judged = any(one["profile"] is not None for one in scored["partitions"])
    if judged:  # exit code 1: it differs from what the model was trained on
        steps.howdah(
            [
                "drift", *options, "--model", run_directory, "--table", SCORED,
                "--partition", PARTITION, "--output", pages,
            ],
            may_fail=True,
        )  # fmt: skip

    clock.step("result")
    clock.end()
    steps.show_metrics(result)
    show_scored(scored)
    if judged:
        print(f"  {pages}/drift.html: comparison with the training data")
    steps.show_predictions(predictions, is_pretrained=is_pretrained)
    output = {
        "table": f"{TABLE} in the Hive metastore",
        "dataset": f"{root}/dataset",
        "run": run_directory,
        "elastic run": elastic_directory,
        "model": f"{run_directory}/export",
        "predictions": f"{run_directory}/predictions",
        "scored": f"{SCORED} in the Hive metastore",
        "cluster": f"{os.path.abspath(arguments.directory)} (still running)",
    }
    commands = (
        f'eval "$(python -m tools.minicluster env --directory {arguments.directory})"',
        f"hdfs dfs -ls -R {root}/dataset",
        "howdah ps --all",
        "yarn application -list -appStates ALL",
        f"hdfs dfs -get {run_directory}/report.html",
        f"echo 'Draw a scatter plot.' | howdah predict --model {run_directory} --stdin",
        f"python -m tools.minicluster stop --directory {arguments.directory}",
    )
    steps.finish(clock, output, commands)


def show_scored(scored: dict) -> None:
    """Print the result of each scored partition and the path of its marker."""
    for one in scored["partitions"]:
        labels = sorted(one["labels"].items(), key=lambda item: -item[1])
        most = ", ".join(f"{label} {count:,}" for label, count in labels[:3])
        counted = f"{one['rows']:,} rows, {one['errors']:,} errors"
        print(f"\nscored {one['partition']}: {counted} ({most})")
        print(f"  {one['marker']}: the same command again skips it")


def main() -> int:
    """Run the demo; the exit code is that of the step that failed, or 0."""
    parser = steps.command_line("tools.demo.cluster", __doc__.splitlines()[0])
    parser.add_argument(
        "--elastic-steps", type=int, default=60, help="steps of the elastic training"
    )
    parser.add_argument("--directory", default=CLUSTER_DIRECTORY, help="directory of the cluster")
    arguments = parser.parse_args()
    clock = Clock(done=0)
    clock.step("a real Hadoop on this machine: HDFS, YARN, Hive metastore")
    cluster = start_cluster(arguments.directory)
    try:
        run(arguments, cluster, clock)
    except BaseException:
        # A demo that fails ends the daemons that it has started.
        if not cluster["was_running"]:
            steps.module("tools.minicluster", "stop", "--directory", arguments.directory)
        raise
    return 0


if __name__ == "__main__":
    sys.exit(steps.guarded(main))
