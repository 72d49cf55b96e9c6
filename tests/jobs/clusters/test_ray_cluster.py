"""A job on a Ray cluster that was started by others (`ray.address`): two nodes on this machine."""

import os
import secrets
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests import ROOT
from tests.jobs.clusters import measured
from tests.runs.jobs.local_jobs import kill
from tests.runs.jobs.submitted_jobs import SubmittedJob, gone
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.mpi, pytest.mark.full, pytest.mark.timeout(900)]


class RayCluster:
    """Nodes as `ray start` makes them, each a process tree that can be killed as a machine is."""

    def __init__(self, place):
        self.place, self.nodes = place, []
        token = os.path.join(place, "token")
        with open(token, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32))
        os.chmod(token, 0o600)
        self.env = {
            **os.environ, "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": token, "RAY_USAGE_STATS_ENABLED": "0",
            "CUDA_VISIBLE_DEVICES": "",
        }  # fmt: skip
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        port = self.address.partition(":")[2]
        self.head = self.start("--head", "--port", port, "--include-dashboard=false",
                               "--temp-dir", place)  # fmt: skip

    def start(self, *words):
        """A node of one core; a list of its processes comes from `processes`."""
        more = words or ("--address", self.address)
        argv = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus=1",
                "--node-ip-address=127.0.0.1", "--object-store-memory=100000000",
                "--disable-usage-stats", *more]  # fmt: skip
        log = Path(self.place, f"node{len(self.nodes)}.log")
        with log.open("wb") as file:
            node = subprocess.Popen(argv, env=self.env, stdout=file, stderr=file, cwd=self.place)
        self.nodes.append(node)

        def up():
            assert node.poll() is None, log.read_text()
            return "--block" in log.read_text()  # the last that it says: "... --block is set"

        wait_until(up, 90)
        return node

    def processes(self, node):
        """The node's processes."""
        process = psutil.Process(node.pid)
        return [process, *process.children(recursive=True)]

    def kill(self, node):
        """Kill all processes of a node at once, as when a machine loses its power."""
        processes = self.processes(node)
        for process in processes:
            process.suspend()  # none sees another one's death
        for process in processes:
            kill(process.pid)
        node.wait()

    def stop(self):
        for node in reversed(self.nodes):
            if node.poll() is None:
                self.kill(node)


@pytest.fixture
def ray_cluster():
    """Two nodes of a core each; their sockets' paths must be short."""
    with tempfile.TemporaryDirectory(prefix="rayc-", ignore_cleanup_errors=True) as place:
        made = RayCluster(place)
        try:
            made.second = made.start()
            yield made
        finally:
            made.stop()


def ray_job(ray_cluster, tmp_path, tiny_dataset, tiny_model_dir, framework):
    """A job of real training on the cluster."""
    env = {key: value for key, value in ray_cluster.env.items() if key.startswith("RAY_")}
    return SubmittedJob(
        tmp_path, "ray", light=False, env=env, ray={"address": ray_cluster.address},
        data={"dataset": tiny_dataset.path, "max_length": 64}, model={"base": tiny_model_dir},
        training={**measured.TRAINING, "framework": framework}, checkpoint=measured.CHECKPOINT,
        evaluation={"splits": ["validation"]}, tracking={"tensorboard": False},
        job={**measured.JOB, "worker": {"memory": "1 GiB"}},
    )  # fmt: skip


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_node_that_is_lost_is_replaced_by_one_that_joins(
    ray_cluster, tmp_path, tiny_dataset, tiny_model_dir, framework
):
    cluster = ray_cluster
    with ray_job(cluster, tmp_path, tiny_dataset, tiny_model_dir, framework) as job:
        where = "ray of two nodes"
        job.trains(2, seconds=200)

        def cost(fault, harm, **more):
            measured.elastic(job, framework, fault, where, harm, **more)

        cost("training process of rank 0 killed", lambda: kill(job.rank(0)["pid"]))
        cost("actor's process killed", lambda: kill(measured.holder(job, 1, spark=False)))
        ranks = {rank["rank"]: rank["pid"] for rank in job.trains(2)["ranks"]}
        pids = {process.pid for process in cluster.processes(cluster.second)}
        [survivor] = set(ranks.values()) - pids
        cost("node gone", lambda: cluster.kill(cluster.second), restore=cluster.start)
        assert job.rank(0)["pid"] == survivor
        # The job ends, its cluster does not.
        assert job.json("kill", job.application, "--save")["state"] == "KILLED"
        assert cluster.head.poll() is None
        wait_until(lambda: not job.processes())


def test_a_cluster_whose_head_is_lost_ends_the_job(
    ray_cluster, tmp_path, tiny_dataset, tiny_model_dir
):
    with ray_job(ray_cluster, tmp_path, tiny_dataset, tiny_model_dir, "torch") as job:
        job.trains(2, seconds=200)
        status = job.wait(lambda s: s["last_checkpoint"], "a checkpoint", 200)
        ranks = [psutil.Process(rank["pid"]) for rank in status["ranks"]]
        ray_cluster.kill(ray_cluster.head)
        wait_until(lambda: job.driver.poll() is not None, 180)
        gone(ranks)
        shown = job.json("status", job.application)
        assert shown["state"] == "LOST"  # Ray itself ends the driver's process, a minute later
        assert "GCS may have been killed" in job.log.read_text()
        saved = shown["job"]["last_checkpoint"]["step"]
        job.on = "local"
        job.submit()
        job.trains(2, seconds=200)
        assert job.run_json()["attempts"][-1]["resumed_at_step"] >= saved
