"""What a run on YARN has used is the ResourceManager's own figure, killed workers included."""

import json
import uuid

import pytest

from howdah import storage
from howdah.hadoop.resourcemanager import ResourceManager
from tests.fixtures.dataset import build_dataset
from tests.runs.jobs.cluster_jobs import ClusterJob
from tests.runs.jobs.local_jobs import kill

pytestmark = [pytest.mark.hadoop, pytest.mark.full]


@pytest.fixture
def data(cluster, tiny_model_dir):
    path = f"/test/hours-{uuid.uuid4().hex[:8]}"
    home = cluster.hdfs_url + path
    storage.make_dirs(f"{home}/model")
    for entry in storage.list_dir(tiny_model_dir):
        storage.upload(entry.path, f"{home}/model/{entry.name}")
    build_dataset(f"{home}/data", model_dir=tiny_model_dir, rows={"train": 960, "validation": 24})
    yield {"base": f"{home}/model", "dataset": f"{home}/data"}
    cluster.remove(path)


@pytest.mark.timeout(600)
def test_hours_are_yarn_s_own_over_two_applications_and_a_killed_worker(
    healthy_cluster, hadoop_env, hdfs_dir, data, tmp_path
):
    run = f"{hdfs_dir}/run"
    knobs = {
        "training.framework": "torch", "job.max_restarts": 100, "job.min_workers": 1,
        "job.max_workers": 2,
    }  # fmt: skip
    jobs = []
    try:
        for number in range(2):
            jobs.append(
                ClusterJob(healthy_cluster, run, tmp_path / f"{number}.yaml", **data, **knobs)
            )
            status = jobs[-1].trains(2)
            if number == 0:
                kill(jobs[-1].rank(1)["pid"])
                jobs[-1].trains(2, status["generation"])
            listed = json.loads(jobs[-1].howdah("ps", "--json"))["jobs"]
            used = {one["application"]: one["hours"]["vcore"] for one in listed}
            assert used[jobs[-1].application] > 0
            jobs[-1].howdah("kill", jobs[-1].application, "--save")
            jobs[-1].end()
        hours = json.loads(jobs[-1].howdah("status", jobs[-1].application, "--json"))["hours"]
        manager = ResourceManager()
        reports = [manager.application(job.application) for job in jobs]
        for key, theirs in (("vcore_seconds", "vcoreSeconds"), ("mib_seconds", "memorySeconds")):
            ours = [hours["applications"][job.application][key] for job in jobs]
            assert ours == [report[theirs] for report in reports] and min(ours) > 0
        total = sum(report["vcoreSeconds"] for report in reports)
        assert hours["vcore"] == pytest.approx(total / 3600, abs=2e-6)
        assert hours["complete"]
        held = storage.read_json(f"{run}/run.json")
        assert held["hours"] == hours
        assert held["attempts"][-1]["command"].startswith("howdah submit --config ")
    finally:
        for job in jobs:
            job.close()
