"""Airflow with Howdah's DAGs on this machine: open the page, trigger a run, get a published model.

    make airflow                 # training on this machine
    make airflow CLUSTER=1       # on a real, small Hadoop that is started beside it

The form's defaults train on docstrings of the installed packages. All files are in the home, and
the next start continues with them; Ctrl-C ends everything.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from howdah import storage
from howdah.airflow.form.daily import from_defaults
from howdah.airflow.form.trigger_form import DAILY, DEFAULTS, OWN
from howdah.config.loader import from_dict, load
from howdah.errors import HowdahError, render
from howdah.policy import rules as policy
from tools import minilm
from tools.demo import cluster as demo_cluster
from tools.demo import corpus, steps, yarn
from tools.demo.steps import say
from tools.local_airflow.home import USER
from tools.local_airflow.standalone import Standalone

ROOT = Path(__file__).resolve().parents[2]
HOME = "build/airflow"
PORT = 8080
DAG = "howdah_finetune"
TABLE = "howdah_airflow.docstrings"
STEPS = 100
"""Steps of the first run, which take over a minute on two cores."""
PACKAGES = ["matplotlib", "networkx", "numpy", "sklearn"]
"""Labels of the first run; the demo's list takes several times as long."""
_OURS = "Made by `make airflow`; replaced at its next start unless this line is changed."
_TOO_SOON_SECONDS = 60.0


class Stopped(BaseException):
    """A signal has asked this program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


# ------------------------------------------------------------------------------ the form's defaults
def defaults(home: Path, base: str, framework: str) -> dict[str, Any]:
    """Defaults of the form: the demo's data and settings, with all files in the home."""
    config = load(str(ROOT / steps.CONFIG))
    data, training = config.data, config.training
    return {
        "np": 2,
        "run": {"name": "first-run"},
        "data": {
            "source": str(home / "output" / "docstrings.parquet"),
            "columns": {"id": data.columns.id},
            "dataset": str(home / "output" / "datasets" / "docstrings"),
            "max_length": data.max_length,
            "quality": {"min_characters": data.quality.min_characters},
            "split": {"validation": data.split.validation, "test": data.split.test},
        },
        "model": {"base": base},
        "training": {
            "framework": framework,
            "global_batch_size": training.global_batch_size,
            "max_steps": STEPS,
            "learning_rate": training.learning_rate,
            "warmup_ratio": training.warmup_ratio,
            "logging_steps": 10,
            "seed": training.seed,
        },
        "checkpoint": {"every_minutes": 1.0, "keep": 2},
        "evaluation": {"every_steps": STEPS // 2, "max_rows": 256, "metric": "macro_f1"},
        # Guessing reaches a third; the report shows the accuracy of a run. Comparing with the
        # published model would be unfair: the first model has seen rows of its test split.
        "gate": {"minimum": {"accuracy": 0.5}, "better_than_published": False},
        "publish": {"directory": str(home / "output" / "models"), "name": "docstrings"},
        # Every day has the same rows here, so a schedule would score them each midnight.
        DAILY: {
            "schedule": None,
            "retrain": {"dataset": str(home / "output" / "datasets" / "docstrings-days")},
        },
    }


def on_cluster(values: dict[str, Any], root: str) -> dict[str, Any]:
    """Defaults on HDFS and YARN: rows in a Hive table, two executors, two workers.

    Args:
        values: the result of `defaults`.
        root: directory on HDFS for all output.
    """
    overrides = [
        *demo_cluster.cluster_overrides(root),
        f"data.source={TABLE}",
        *yarn.overrides(2),
        f"publish.directory={root}/models",
        "daily.partition=part=p0",
        f"daily.retrain.dataset={root}/datasets/docstrings-days",
    ]
    merged = copy.deepcopy(values)
    for override in overrides:
        key, _, value = override.partition("=")
        section = merged
        *path, last = key.split(".")
        for part in path:
            section = section.setdefault(part, {})
        section[last] = yaml.safe_load(value)
    return merged


def write_defaults(home: Path, values: Mapping[str, Any]) -> Path:
    """Write the file that the DAGs read, after checking it as a configuration."""
    sections = {k: v for k, v in values.items() if k not in (*OWN, DAILY)}
    from_dict(sections, where="the form's defaults")
    from_defaults(values)
    path = home / "defaults.yaml"
    path.write_text(
        "# Defaults of the form. Written by `make airflow`.\n"
        + yaml.safe_dump(dict(values), sort_keys=False)
    )
    return path


# ------------------------------------------------------------------------------------ the cluster
@contextlib.contextmanager
def cluster(directory: str, *, enabled: bool) -> Iterator[dict[str, Any] | None]:
    """Context with a real Hadoop; a cluster that was already running is left running."""
    if not enabled:
        yield None
        return
    say("\n=== a real Hadoop on this machine: HDFS, YARN, Hive metastore")
    running = demo_cluster.start_cluster(directory)
    try:
        yield running
    finally:
        if not running["was_running"]:
            steps.module("tools.minicluster", "stop", "--directory", directory)


def fill_cluster(running: Mapping[str, Any], base: str) -> str:
    """Put base model and Hive table on the cluster; return the directory on HDFS for output."""
    os.environ.update(running["environment"])
    root = f"{running['hdfs_url']}/howdah-airflow"
    demo_cluster.put_base_model(base, f"{root}/base/{storage.name(base)}")
    say(f"rows: the Hive table {TABLE}")
    steps.module("tools.demo.table", TABLE, *PACKAGES)
    return root


# ---------------------------------------------------------------------------------------- Airflow
def connections(airflow: Standalone, running: Mapping[str, Any] | None) -> None:
    """Write the Connection howdah_default, unless a user has changed it."""
    local = {
        "on": "local",
        "run_root": str(airflow.files),
        "files_url": airflow.files_url,
        "working_directory": str(ROOT),
    }
    extras = {"howdah_default": local}
    if running is not None:
        on_yarn = {
            "on": "yarn",
            "run_root": airflow.remote_files,
            "files_url": airflow.remote_files_url,
            "environment": dict(running["environment"]),
            "working_directory": str(ROOT),
        }
        extras = {"howdah_default": on_yarn, "howdah_local": local}
    existing = {each["connection_id"]: each for each in airflow.client.connections()}
    for name, extra in extras.items():
        if name in existing and existing[name]["description"] != _OURS:
            say(f"keeping the Connection {name}, which was changed by hand")
            continue
        airflow.client.connection(name, extra, description=_OURS)


def banner(airflow: Standalone, running: Mapping[str, Any] | None) -> None:
    """Print the next steps for the user."""
    say("\n" + "=" * 78)
    say(f"Airflow is ready:   {airflow.url}")
    if airflow.new_password:
        say(f"user and password:  {USER}  {airflow.home.password}     (shown this once;")
        say(f"                    it is kept in {_short(airflow.home.password_file)})")
    else:
        say(f"user:               {USER}, the password is in {_short(airflow.home.password_file)}")
    say(f"trains on:          {'YARN, on ' + running['hdfs_url'] if running else 'this machine'}")
    say("")
    say(f"first run:          {airflow.url}/dags/{DAG}")
    say("                    Trigger > look at the form > Trigger; then click the task `train`.")
    say("then:               howdah_daily scores a day's rows, howdah_retrain appends them and")
    say("                    trains on (docs/daily.md): unpause them, press Trigger.")
    say(f"logs of components: {_short(airflow.home.log_of('scheduler').parent)}")
    say("Ctrl-C ends everything; the next start continues from there.")
    say("=" * 78)


def _short(path: Path) -> str:
    with contextlib.suppress(ValueError):
        return str(path.relative_to(ROOT))
    return str(path)


def watch(airflow: Standalone) -> None:
    """Restart components that die, until a signal comes.

    Raises:
        ClusterError: a component dies soon after each start.
    """
    started = dict.fromkeys(airflow.components.names, time.monotonic())
    while True:
        time.sleep(1)
        for name in airflow.components.dead:
            if time.monotonic() - started[name] < _TOO_SOON_SECONDS:
                raise airflow.components.failure(name, "it ends soon after each start")
            log = _short(airflow.home.log_of(name))
            say(f"restarting {name}, which has ended (its log: {log})")
            airflow.components.restart(name)
            started[name] = time.monotonic()


@contextlib.contextmanager
def signals(airflow: Standalone) -> Iterator[None]:
    """Context in which SIGINT, SIGTERM and SIGHUP end Airflow; a second signal kills the rest."""

    def stop(number: int, _frame: object) -> None:
        if airflow.ending:
            airflow.hurry()
        else:
            raise Stopped(number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def serve(arguments: argparse.Namespace) -> None:
    """Run everything, from the base model to the last child's end."""
    home = Path(os.path.abspath(arguments.home))
    home.mkdir(parents=True, exist_ok=True)
    airflow = Standalone(
        home, dags=ROOT / "dags", port=arguments.port, say=lambda line: say(f"  {line}")
    )
    with signals(airflow):
        airflow.check_port()
        base, _ = minilm.base_model(say)
        with cluster(arguments.directory, enabled=arguments.cluster) as running:
            values = defaults(home, base, arguments.framework)
            if running is None:
                corpus.write(values["data"]["source"], PACKAGES, corpus.ROWS)
            else:
                root = fill_cluster(running, base)
                airflow.remote_files = root
                values = on_cluster(values, root)
                values["model"]["base"] = f"{root}/base/{storage.name(base)}"
            airflow.home.extra_env[DEFAULTS] = str(write_defaults(home, values))
            if not os.environ.get(policy.ENVIRONMENT):
                airflow.home.extra_env[policy.ENVIRONMENT] = str(airflow.home.write_policy())
            say("\n=== Airflow")
            try:
                airflow.start()
                airflow.wait_dags([DAG])
                connections(airflow, running)
                if airflow.new_password:  # a new home; later the user decides
                    airflow.client.pause(DAG, paused=False)
                banner(airflow, running)
                watch(airflow)
            finally:
                say("\n=== the end")
                airflow.stop()


def main() -> int:
    """The command line; 130, 143 or 129 when a signal has ended it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--home", default=HOME, help=f"AIRFLOW_HOME [{HOME}]")
    parser.add_argument("--port", type=int, default=PORT, help=f"of the pages [{PORT}]")
    parser.add_argument("--cluster", action="store_true", help="a real Hadoop beside it")
    parser.add_argument(
        "--directory", default=demo_cluster.CLUSTER_DIRECTORY, help="of the Hadoop cluster"
    )
    parser.add_argument("--framework", choices=["tensorflow", "torch"], default="tensorflow")
    try:
        serve(parser.parse_args())
    except Stopped as stopped:
        say("Airflow has ended")
        return 128 + stopped.number
    except HowdahError as error:
        say(f"airflow: {render(error)}")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
