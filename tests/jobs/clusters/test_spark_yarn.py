"""A job in a Spark application on YARN: its executors get Python and Howdah from the submission."""

import os

import pytest

from howdah import storage
from howdah.core.cache import cache_root
from howdah.packaging import horovod
from tests.fixtures.etl_yarn import SPARK, containers
from tests.jobs.clusters import measured
from tests.runs.jobs.local_jobs import kill
from tests.runs.jobs.submitted_jobs import SubmittedJob, gone
from tests.runs.jobs.yarn_jobs import place_data
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.hadoop, pytest.mark.full]
EXECUTOR = "YarnCoarseGrainedExecutorBackend"


@pytest.fixture
def job(healthy_cluster, hadoop_env, hdfs_dir, tiny_model_dir, tmp_path):
    """Submits jobs on Spark on YARN, and ends what they leave."""
    made = []

    def make(framework, *, etl):
        (tmp_path / "cache").mkdir()
        # The user's: environments of a gigabyte are packed once, and Horovod is built once.
        for name in ("packages", "wheels", "sdists"):
            os.makedirs(kept := os.path.join(cache_root(), name), exist_ok=True)
            (tmp_path / "cache" / name).symlink_to(kept)
        horovod.provide(framework, None, os.path.join(cache_root(), "packages"), print)
        place_data(hdfs_dir, tiny_model_dir)
        data = {"dataset": f"{hdfs_dir}/set"}
        if etl:
            lines = [f"text of row {n} and {n * 7919},{'ab'[n % 2]}" for n in range(120)]
            rows = "\n".join(["text,label", *lines, ""])
            storage.write_whole(f"{hdfs_dir}/rows.csv", rows.encode())
            data = {"dataset": f"{hdfs_dir}/made", "source": f"{hdfs_dir}/rows.csv"}
        one = SubmittedJob(
            tmp_path, "spark", light=False, run=f"{hdfs_dir}/run", env=healthy_cluster.env,
            words=("--etl",) if etl else (),
            data={**data, "max_length": 64, "spark": SPARK}, model={"base": f"{hdfs_dir}/model"},
            training={**measured.TRAINING, "framework": framework},
            checkpoint=measured.CHECKPOINT, evaluation={"splits": ["validation"]},
            tracking={"tensorboard": False},
            job={**measured.JOB, "worker": {"memory": "1280 MiB"}},
        )  # fmt: skip
        made.append(one)
        return one

    yield make
    for one in made:
        one.__exit__()
    healthy_cluster.end_applications()


@pytest.mark.timeout(1200)  # an environment of gigabytes goes to HDFS and to both nodes
@pytest.mark.parametrize(("framework", "etl"), [("torch", False), ("tensorflow", True)])
def test_workers_of_a_spark_on_yarn_are_replaced(job, healthy_cluster, framework, etl):
    one, where = job(framework, etl=etl), "Spark on YARN"
    one.trains(2, seconds=400)

    def cost(fault, harm):
        measured.elastic(one, framework, fault, where, harm)

    [application] = running(healthy_cluster)  # the ETL's is the same
    for rank in (0, 1):  # in the environment that was shipped
        program = os.readlink(f"/proc/{one.rank(rank)['pid']}/exe")
        assert "/filecache/" in program, program
    cost("training process of rank 0 killed", lambda: kill(one.rank(0)["pid"]))
    executor = measured.holder(one, 1, spark=True)
    assert executor in containers(application, EXECUTOR)
    cost("executor killed", lambda: kill(executor))
    measured.driver_killed(one, framework, where)
    wait_until(lambda: not containers(application, EXECUTOR), 60)
    [application] = running(healthy_cluster)
    step, started = one.status["step"], one.descendants()
    assert one.json("kill", one.application, "--save")["state"] == "KILLED"
    assert one.file["last_checkpoint"]["step"] >= step
    gone(started)
    wait_until(lambda: not containers(application, EXECUTOR), 60)


def running(cluster):
    """Ids of the cluster's applications that are not over."""
    lines = cluster.run("yarn", "application", "-list").stdout.splitlines()
    return [line.split()[0] for line in lines if line.strip().startswith("application_")]
