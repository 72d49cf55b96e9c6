"""The commit protocol on a real HDFS: whatever is killed or full, a dataset is whole or absent."""

import os
import signal
import threading

import pyarrow as pa
import pytest

from howdah import storage
from howdah.data.encode import Encoder
from howdah.data.record import Columns, RecordLayout, ids_dtype_for
from howdah.etl.workspace.staging import attempt_name, sweep
from howdah.etl.write import shards
from tests.fixtures.etl_yarn import containers, wait_for, whole

pytestmark = [pytest.mark.hadoop, pytest.mark.spark]
ROWS = 3000
LOCAL = {"master": "local[2]"}


def _application(yarn_etl):
    (application,) = yarn_etl.applications()
    return application


@pytest.mark.full
def test_an_executor_that_dies_costs_no_row(yarn_etl):
    config = yarn_etl.config(source=yarn_etl.put_rows(ROWS), num_shards=4)
    process = yarn_etl.start(config)
    try:
        wait_for(lambda: any("/_run-" in name for name in yarn_etl.left()), process)
        application = _application(yarn_etl)
        main = "YarnCoarseGrainedExecutorBackend"
        executors = wait_for(lambda: containers(application, main))
        for pid in executors:
            os.kill(pid, signal.SIGKILL)
        code, answer, err = yarn_etl.finish(process)
    finally:
        process.kill()
    assert code == 0, err
    whole(answer["dataset"], ROWS)


@pytest.mark.full  # without YARN, what a dead run leaves is in every run: test_pipeline.py
@pytest.mark.parametrize("mode", ["cluster", "client"])
def test_a_driver_that_dies_commits_nothing_and_the_next_run_does(yarn_etl, mode):
    source = yarn_etl.put_rows(ROWS)
    process = yarn_etl.start(yarn_etl.config(source=source, spark={"deploy_mode": mode}))
    try:
        wait_for(lambda: any("/_run-" in name for name in yarn_etl.left()), process)
        if mode == "client":
            process.kill()
            process.communicate()
        else:
            masters = containers(_application(yarn_etl), "deploy.yarn.ApplicationMaster")
            assert masters
            for pid in masters:
                os.kill(pid, signal.SIGKILL)
            code, answer, err = yarn_etl.finish(process)
            assert code == 5 and answer["error"] == "ClusterError", err
            assert answer["where"].startswith("application_")
            assert yarn_etl.left() == []  # the launcher knows that the application is over
    finally:
        process.kill()
    wait_for(lambda: not yarn_etl.applications())
    assert not any(name.endswith("manifest.json") for name in yarn_etl.left())
    code, answer, err = yarn_etl.run(yarn_etl.config(source=source, spark=LOCAL))
    assert code == 0, err
    whole(answer["dataset"], ROWS)


@pytest.mark.full  # the race for the manifest is in every run: test_pipeline.py
def test_two_runs_of_one_dataset_make_it_once(yarn_etl):
    config = yarn_etl.config(source=yarn_etl.put_rows(400), spark=LOCAL)
    both = [yarn_etl.start(config) for _ in range(2)]
    answers = [yarn_etl.finish(process) for process in both]
    for code, _, err in answers:
        assert code == 0, err
    (path,) = {answer["dataset"] for _, answer, _ in answers}
    assert sorted(answer["unchanged"] for _, answer, _ in answers) in (
        [False, True],
        [True, True],  # never both: who finds the other's manifest says so
    )
    whole(path, 400)


@pytest.mark.full  # a quota is in every run of the storage's tests
def test_a_full_quota_is_named_and_leaves_nothing(yarn_etl):
    source = yarn_etl.put_rows(400)
    where = yarn_etl.dataset.removeprefix(yarn_etl.cluster.hdfs_url)
    yarn_etl.cluster.make_dir(where)
    # dataset, version, lease and four names: the shards' files do not find room
    yarn_etl.cluster.run("hdfs", "dfsadmin", "-setQuota", "7", where)
    config = yarn_etl.config(source=source, spark=LOCAL, num_shards=8)
    code, answer, err = yarn_etl.run(config)
    assert code == 5 and answer["error"] == "QuotaExceeded", (answer, err)
    assert yarn_etl.dataset in answer["where"] and answer["remedy"]
    assert "Traceback" not in err and yarn_etl.left() == []
    yarn_etl.cluster.run("hdfs", "dfsadmin", "-clrQuota", where)
    code, answer, err = yarn_etl.run(config)
    assert code == 0, err
    whole(answer["dataset"], 400)


def test_two_attempts_of_one_task_do_not_meet(hdfs_dir, tiny_model_dir, monkeypatch):
    """What speculation does: the same task twice at once. (YARN has one host here, and Spark
    speculates on another only.)"""
    encoder = Encoder.load(tiny_model_dir)
    layout = RecordLayout(ids_dtype=ids_dtype_for(encoder.vocab_size), columns=Columns())
    version = storage.join(hdfs_dir, "dataset", "v=0")
    dtype = shards.ids_type(encoder.vocab_size)
    ids = [array.astype(dtype).tobytes() for array in encoder.encode(["a text"] * 500, 16)]
    batch = pa.RecordBatch.from_pydict(
        {
            "split": ["train"] * 500,
            "shard": pa.array([0] * 500, pa.int32()),
            "shards": pa.array([1] * 500, pa.int32()),
            "id": [f"row-{n}" for n in range(500)],
            "label": pa.array([0] * 500, pa.int32()),
            "ids": pa.array(ids, pa.binary()),
        }
    )
    numbers = threading.local()

    class Context:
        @staticmethod
        def get():
            return Context

        @staticmethod
        def taskAttemptId():
            return numbers.own

    monkeypatch.setattr(shards, "TaskContext", Context)
    written = {}

    def attempt(number):
        numbers.own = number
        out = shards._write_batches([batch], version, "0badcafe", layout, "none", dtype.str)
        written[number] = [row for b in out for row in b.to_pylist()]

    threads = [threading.Thread(target=attempt, args=(n,)) for n in (7, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = {e.name for e in storage.list_dir(version)}
    both = {attempt_name("train-00000-of-00001", "0badcafe", n, "tfrecord") for n in (7, 8)}
    assert names == {f"{name}{end}" for name in both for end in ("", ".index", ".ids")}
    entries = [written[n][0]["entry"] for n in (7, 8)]
    assert entries[0].replace("-7.", "-8.") == entries[1]  # the same bytes under two names
    assert len(sweep(storage.join(hdfs_dir, "dataset"))) == 6
