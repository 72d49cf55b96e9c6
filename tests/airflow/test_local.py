"""Training on this machine by a whole Airflow: its task killed, its end by hand, secrets."""

import json
import os
import signal
from pathlib import Path

import pytest

from howdah.core.processes import descendants, stat_fields
from howdah.training.checkpoint.manager import Checkpoints
from tests.runs.training_runs import SETTINGS
from tests.runs.training_runs import _nested as nested
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.airflow, pytest.mark.mpi]

LIMIT = 200.0
SECRET = "hush-hush-4242"

DAG_FILE = """
import json
from datetime import timedelta

from airflow.sdk import DAG

from howdah.airflow.train import HowdahTrainOperator

with DAG({name!r}, schedule=None, catchup=False):
    HowdahTrainOperator(
        task_id="train", conn_id={conn_id!r}, np=2, retries=1,
        retry_delay=timedelta(seconds=0), config=json.loads({config!r}),
    )
"""


@pytest.fixture
def training(airflow_standalone, tmp_path, tiny_dataset, tiny_model_dir):
    """A DAG that trains without end; its id and its run directory."""
    name = "endless_training"
    directory = str(tmp_path / "run")
    config = nested(
        SETTINGS
        | {
            "training.max_steps": 1_000_000,
            "training.framework": "torch",
            "checkpoint.every_steps": 50,
            "run.directory": directory,
            "data.dataset": tiny_dataset.path,
            "model.base": tiny_model_dir,
        }
    )
    # Python that says what no program should.
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'train' in sys.orig_argv and 'guard' not in sys.orig_argv:\n"
        "    print('the password is', os.environ['TRACKING_PASSWORD'], file=sys.stderr)\n"
    )
    environment = {
        "TRACKING_PASSWORD": SECRET,
        "HOWDAH_CACHE": str(tmp_path / "cache"),
        "HOWDAH_PYTHONPATH": str(tmp_path),
    }
    extra = {"environment": environment, "working_directory": str(tmp_path)}
    airflow_standalone.connection("secretive", extra)
    text = DAG_FILE.format(name=name, conn_id="secretive", config=json.dumps(config))
    airflow_standalone.add_dag(name, text)
    yield name, directory
    for pid in at_work(directory):
        os.kill(pid, signal.SIGKILL)


def at_work(directory):
    """Processes that name a run directory in their command line, their parents' pids by them."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        fields = stat_fields(int(name))
        if directory in words and fields and fields[0] not in "ZX" and int(name) != os.getpid():
            parents[int(name)] = int(fields[1])
    return parents


def guards(airflow):
    """Guards below an Airflow: {pid: pid of the task's process}."""
    parents = {}
    for pid in descendants(airflow.components.pid("scheduler")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"guard" in words and b"train" in words:
            parents[pid] = int(stat_fields(pid)[1])
    return parents


def steps_saved(directory):
    return [saved.step for saved in Checkpoints(f"{directory}/checkpoints").list()]


def test_a_killed_task_leaves_nothing_its_retry_goes_on_and_by_hand_it_ends(
    airflow_standalone, training
):
    airflow, (dag, directory) = airflow_standalone, training
    run = airflow.trigger(dag)
    wait_until(lambda: steps_saved(directory), LIMIT)
    assert "step" in airflow.log(dag, run, "train", 1)  # rank 0's lines, while it runs
    ((guard, task),) = guards(airflow).items()

    os.kill(task, signal.SIGKILL)  # as by the kernel, for want of memory
    wait_until(lambda: airflow.task(dag, run, "train")["try_number"] == 2, LIMIT)
    wait_until(lambda: "resuming from checkpoint" in log(airflow, dag, run, 2), LIMIT)
    assert stat_fields(guard) is None  # the retry has waited for the end of the first try
    ((second, _),) = guards(airflow).items()
    attempts = json.loads(Path(directory, "run.json").read_text())["attempts"]
    assert attempts[1]["resumed_at_step"] > 0
    lines = log(airflow, dag, run, 2)
    assert f"resuming from checkpoint step-{attempts[1]['resumed_at_step']}" in lines

    airflow.mark(dag, run, "train", "failed")
    wait_until(lambda: stat_fields(second) is None and not at_work(directory), LIMIT)
    assert airflow.task(dag, run, "train")["state"] == "failed"
    assert guards(airflow) == {}

    # The Connection's secret, which the program has said, is in no log, rendered field or XCom.
    for number in (1, 2):
        assert "the password is ***" in log(airflow, dag, run, number)
    shown = json.dumps(airflow.task(dag, run, "train"))
    shown += json.dumps(airflow.api("GET", "/connections/secretive"))
    path = f"/dags/{dag}/dagRuns/{run}/taskInstances/train/xcomEntries"
    shown += json.dumps(airflow.api("GET", path))
    assert SECRET not in shown
    assert "environment" in shown
    written = [
        file for file in airflow.home.directory.rglob("*") if file.is_file() and "logs" in str(file)
    ]
    assert written
    lines = (line for file in written for line in file.read_bytes().splitlines())
    assert not [line for line in lines if SECRET.encode() in line]


def log(airflow, dag, run, number):
    """A try's log; empty while there is none."""
    from howdah.errors import ClusterError

    try:
        return airflow.log(dag, run, "train", number)
    except ClusterError:
        return ""
