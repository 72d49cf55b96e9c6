"""What faults cost real training on this machine, Spark and Ray: rows of docs/faults.md."""

import pytest

from tests.jobs.clusters import measured
from tests.jobs.clusters.test_clusters import CLUSTERS
from tests.runs.jobs.local_jobs import kill
from tests.runs.jobs.submitted_jobs import SubmittedJob

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


@pytest.fixture
def job(tmp_path, tiny_dataset, tiny_model_dir):
    """Submits jobs of real training, and ends what they leave."""
    made = []

    def make(on, framework):
        spark = {"master": "local-cluster[2,1,1024]", "driver_memory": "512m"}
        one = SubmittedJob(
            tmp_path, on, light=False,
            data={"dataset": tiny_dataset.path, "max_length": 64, "spark": spark},
            model={"base": tiny_model_dir},
            training={**measured.TRAINING, "framework": framework},
            checkpoint=measured.CHECKPOINT, evaluation={"splits": ["validation"]},
            tracking={"tensorboard": False}, job=measured.JOB,
        )  # fmt: skip
        made.append(one)
        return one

    yield make
    for one in made:
        one.__exit__()


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
@pytest.mark.parametrize("on", CLUSTERS)
def test_what_faults_cost_a_job(job, on, framework):
    one = job(on, framework)

    def cost(fault, harm):
        measured.elastic(one, framework, fault, on, harm)

    cost("training process of rank 1 killed", lambda: kill(one.rank(1)["pid"]))
    cost("training process of rank 0 killed", lambda: kill(one.rank(0)["pid"]))
    cost("agent killed", lambda: measured.agent(one, 1))
    if on != "local":  # there the agent is the container
        name = {"spark": "executor", "ray": "actor's process"}[on]
        cost(f"{name} killed", lambda: kill(measured.holder(one, 1, spark=on == "spark")))
    measured.driver_killed(one, framework, on)
    assert one.json("kill", one.application, "--save")["state"] == "KILLED"
