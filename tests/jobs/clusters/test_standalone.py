"""A job on a standalone Spark: a master and workers as daemons, with authentication."""

import os
import re
import subprocess
import sys

import psutil
import pytest

from tests import ROOT
from tests.jobs.clusters import measured
from tests.runs.jobs.local_jobs import kill
from tests.runs.jobs.submitted_jobs import SubmittedJob, gone
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.full, pytest.mark.timeout(900)]

SECRET = "a secret of this test"
CONF = {
    "spark.authenticate": "true", "spark.network.crypto.enabled": "true",
    "spark.authenticate.secret": SECRET,
}  # fmt: skip


class Standalone:
    """A master and its workers on loopback, each worker with one core."""

    def __init__(self, directory):
        import pyspark

        self.home, self.directory = os.path.dirname(pyspark.__file__), directory
        self.env = {
            **os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": self.home,
            "SPARK_WORKER_DIR": str(directory / "work"), "PYTHONPATH": str(ROOT),
            "SPARK_DAEMON_JAVA_OPTS": " ".join(f"'-D{k}={v}'" for k, v in CONF.items()),
        }  # fmt: skip
        self.log, self.daemons, self.master = directory / "daemons.log", [], None

    def __enter__(self):
        self._daemon("master.Master")
        wait_until(self._address, 60)
        self.master = self._address()[0]
        return self

    def __exit__(self, *_):
        for daemon in reversed(self.daemons):
            self.kill(daemon)

    def worker(self):
        """One more worker, once the master has registered it."""
        before = self._registered()
        made = self._daemon("worker.Worker", "--cores", "1", "--memory", "1G", self.master)
        wait_until(lambda: self._registered() > before, 60)
        return made

    def kill(self, daemon):
        """Kill a worker, its executors and what they started, as when a machine loses power."""
        try:
            root = psutil.Process(daemon.pid)
            processes = [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            processes = []
        for process in processes:
            if process.is_running():
                process.suspend()  # none sees another one's death
        for process in processes:
            kill(process.pid)
        daemon.wait()

    def has(self, daemon, pid):
        """True if a process is below a daemon."""
        return pid in {child.pid for child in psutil.Process(daemon.pid).children(recursive=True)}

    def _daemon(self, name, *words):
        argv = [f"{self.home}/bin/spark-class", f"org.apache.spark.deploy.{name}",
                "--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *words]  # fmt: skip
        with self.log.open("ab") as log:
            made = subprocess.Popen(argv, env=self.env, stdout=log, stderr=log, cwd=self.directory)
        self.daemons.append(made)
        return made

    def _address(self):
        return re.search(r"spark://127\.0\.0\.1:\d+", self.log.read_text())

    def _registered(self):
        return self.log.read_text().count("Registering worker")


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_standalone_spark_with_authentication_and_encryption(
    framework, tmp_path, tiny_dataset, tiny_model_dir
):
    with Standalone(tmp_path) as cluster:
        nodes = [cluster.worker(), cluster.worker()]
        conf = {**CONF, "spark.driver.host": "127.0.0.1",
                "spark.executorEnv.PYTHONPATH": str(ROOT)}  # fmt: skip
        spark = {"master": cluster.master, "driver_memory": "512m", "conf": conf}
        with SubmittedJob(
            tmp_path, "spark", light=False, env={"PYSPARK_PYTHON": sys.executable},
            data={"dataset": tiny_dataset.path, "max_length": 64, "spark": spark},
            model={"base": tiny_model_dir},
            training={**measured.TRAINING, "framework": framework},
            checkpoint=measured.CHECKPOINT, evaluation={"splits": ["validation"]},
            tracking={"tensorboard": False}, job=measured.JOB,
        ) as one:  # fmt: skip
            where = "standalone spark"

            def cost(fault, harm, **more):
                measured.elastic(one, framework, fault, where, harm, **more)

            status = one.trains(2, seconds=300)
            assert len({rank["container"] for rank in status["ranks"]}) == 2
            cost("training process of rank 1 killed", lambda: kill(one.rank(1)["pid"]))
            cost("training process of rank 0 killed", lambda: kill(one.rank(0)["pid"]))
            cost("executor killed", lambda: kill(measured.holder(one, 1, spark=True)))
            one.trains(2)
            [node] = [node for node in nodes if cluster.has(node, one.rank(1)["pid"])]
            cost("node gone", lambda: cluster.kill(node), restore=cluster.worker)
            measured.driver_killed(one, framework, where)
            assert SECRET not in one.log.read_text()
            started = one.descendants()
            assert one.json("kill", one.application, "--save")["state"] == "KILLED"
            gone(started)
