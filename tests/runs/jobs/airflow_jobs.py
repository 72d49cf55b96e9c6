"""Training tasks of a real Airflow on the mini cluster: started, looked at, and harmed for real."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path

from howdah import storage
from howdah.airflow.application.ownership import TaskKey
from howdah.hadoop import conf as hadoop_conf
from howdah.hadoop.resourcemanager import OVER, ResourceManager
from tests.runs.jobs.yarn_jobs import settings
from tests.support.hadoop.planted import MARK

ROWS = {"train": 7200, "validation": 24}  # an epoch has 300 steps
LIMIT = 240.0  # seconds; a test that hangs waits longer than this
TASK = "train"
SECRETS = {"HF_TOKEN": f"hf_{MARK}"}
"""In the Connection's environment, and named in `job.secret_env`."""
_DAG = """
import datetime, os, signal

from airflow.sdk import DAG

from howdah.airflow.train import HowdahTrainOperator


class DiesOnce(HowdahTrainOperator):
    '''Its first try is killed after the submission, before the id is stored.'''

    def submit_job(self, context):
        there = super().submit_job(context)
        if context["ti"].try_number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return there


class LosesTrigger(HowdahTrainOperator):
    '''Its triggerer has another version of Howdah, without that trigger.'''

    def defer(self, *, trigger, **more):
        trigger.serialize = lambda: ("howdah.airflow.trigger.OfAnotherVersion", {{}})
        super().defer(trigger=trigger, **more)


def dag(name, kind=HowdahTrainOperator, **more):
    with DAG(name, schedule=None, params={{"config": {{}}}}, render_template_as_native_obj=True):
        kind(
            task_id="{task}", conn_id="{connection}", config="{{{{ params.config }}}}",
            retry_delay=datetime.timedelta(seconds=1), **more,
        )


dag("{name}", retries=0)
dag("{name}_retries", retries=1)
dag("{name}_dies", kind=DiesOnce, retries=1)
dag("{name}_loses", kind=LosesTrigger, retries=0)
dag("{name}_hurry", retries=0, execution_timeout=datetime.timedelta(seconds=45))
"""


class TrainingTasks:
    """DAGs with one training task, and a Connection to the cluster.

    Args:
        airflow: the fixture `airflow_standalone`.
        cluster: a MiniCluster.
        data: directory on HDFS with the files of `place_data(..., rows=ROWS)`.
    """

    NAME, CONNECTION = "training_task", "training_cluster"

    def __init__(self, airflow, cluster, data):
        self.airflow, self.cluster, self.data = airflow, cluster, data
        self.manager = ResourceManager(hadoop_conf.load(cluster.env, names=hadoop_conf.YARN_FILES))
        changed = {k: v for k, v in cluster.env.items() if os.environ.get(k) != v}
        airflow.connection(
            self.CONNECTION,
            {"on": "yarn", "environment": {**changed, **SECRETS}, "run_root": f"{data}/runs"},
        )
        text = _DAG.format(task=TASK, connection=self.CONNECTION, name=self.NAME)
        airflow.add_dag(self.NAME, text)

    def start(self, name, kind="", **sections):
        """Trigger a run that trains for long enough to be harmed."""
        dag = self.NAME + (f"_{kind}" if kind else "")
        all_sections = {
            "training": {"max_steps": 300, "global_batch_size": 24, "per_device_max_tokens": 128},
            "checkpoint": {"every_steps": 50},
            "yarn": {"driver": {"memory": "512 MiB"}},
            "job": {"workers": 1, "worker": {"memory": "1536 MiB"}, "secret_env": [*SECRETS]},
        }  # fmt: skip
        for section, values in sections.items():
            all_sections[section] = {**all_sections.get(section, {}), **values}
        config = settings(self.data, name, **all_sections)
        return TrainingTask(self, dag, self.airflow.trigger(dag, {"config": config}), config)


class TrainingTask:
    """One run of such a DAG."""

    def __init__(self, tasks, dag, run, config):
        self.airflow, self.manager = tasks.airflow, tasks.manager
        self.dag, self.run, self.config = dag, run, config
        self.directory = config["run"]["directory"]
        self.key = TaskKey(dag, run, TASK)

    # ------------------------------------------------------------------------------ looking
    def submitters(self):
        """Processes of `howdah submit` that this Airflow's tasks have started."""
        home, pids = f"AIRFLOW_HOME={self.airflow.home.directory}".encode(), []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                arguments = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
                ours = home in Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                if ours and b"submit" in arguments and b"guard" not in arguments:
                    pids.append(int(name))
        return pids

    @property
    def task(self):
        return self.airflow.task(self.dag, self.run, TASK)

    def having_secrets(self):
        """Words of the processes of this machine that have `SECRETS`' values."""
        command_lines = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                held = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                if all(f"{key}={value}".encode() in held for key, value in SECRETS.items()):
                    command_lines.append(Path(f"/proc/{name}/cmdline").read_bytes().decode())
        return command_lines

    def log(self, try_number=None):
        return self.airflow.log(self.dag, self.run, TASK, try_number)

    def applications(self, **filters):
        """This task's applications, newest first."""
        return self.manager.applications(applicationTags=self.key.tag, **filters)

    def story(self):
        """What a failed test shows."""
        apps = [(a["id"], a["state"], a.get("diagnostics")) for a in self.applications()]
        number = self.task["try_number"]
        logs = "\n".join(f"== try {n}\n{self.log(n)[-5000:]}" for n in range(1, number + 1))
        return f"{self.task['state']} {apps}\n{logs}"

    def wait(self, condition, what, seconds=LIMIT):
        """Until `condition()` is something; that."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < deadline, f"{what}\n{self.story()}"
            time.sleep(0.5)
        return value

    def deferred(self):
        """Wait until the task waits in the triggerer; its application's id."""
        self.airflow.wait_task(self.dag, self.run, TASK, ["deferred"], LIMIT)
        return self.applications()[0]["id"]

    def steps(self):
        """Every step of metrics.jsonl in the order of its lines."""
        text = storage.read_text(storage.join(self.directory, "metrics.jsonl"))
        lines = [json.loads(line) for line in text.splitlines()]
        return [line["step"] for line in lines if "lr" in line]

    def submits(self):
        """Wait until the task is about to submit."""
        self.airflow.wait_task(self.dag, self.run, TASK, ["running"], LIMIT)
        name = self.config["run"]["name"]
        self.wait(lambda: f"submitting {name}" in self.log(1), "the submission")

    def trains(self):
        """Wait until steps are done, and a checkpoint is there."""
        path = storage.join(self.directory, "job", "status.json")

        def saved():
            if not storage.exists(path):
                return None
            return (storage.read_json(path).get("last_checkpoint") or {}).get("step")

        return self.wait(saved, "a checkpoint")

    def over(self, application, seconds=LIMIT):
        """Wait until YARN says that an application has ended; its report."""

        def ended():
            report = self.manager.application(application)
            return report if report["state"] in OVER else None

        return self.wait(ended, f"the end of {application}", seconds)

    def ends(self, state="success"):
        """Wait until the run is over; what the task has answered with."""
        self.airflow.wait_run(self.dag, self.run, LIMIT, state)
        if state == "success":
            return self.airflow.xcom(self.dag, self.run, TASK)
        return None
