"""`howdah etl --master yarn`: client and cluster mode, interrupts, containers that fail."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest

from howdah import storage
from howdah.config import loader as config_module
from howdah.data.manifest import load_dataset
from howdah.errors import ClusterError, ConfigError, DataError
from howdah.etl.launch import driver, submit
from howdah.etl.workspace import staging
from howdah.spark import applications, shipping
from howdah.spark.errors import translated
from tests.fixtures.etl_yarn import wait_for, whole

on_yarn = [pytest.mark.hadoop, pytest.mark.spark]
CLUSTER = {"deploy_mode": "cluster"}


def marked(*more):
    def mark(test):
        for one in (*on_yarn, *more):
            test = one(test)
        return test

    return mark


@marked()
def test_a_dataset_is_made_in_cluster_mode_and_found_again(yarn_etl):
    cluster_mode(yarn_etl, yarn_etl.put_rows(60))


def cluster_mode(yarn_etl, source):
    whole = {"source": source, "dedup": {}}
    code, answer, err = yarn_etl.run(yarn_etl.config(**whole, spark=CLUSTER))
    assert code == 0, err
    assert sum(answer["rows"].values()) == 60 and not answer["unchanged"]
    assert answer["application"].startswith("application_")
    assert f"submitted {answer['application']}" in err and "is RUNNING" in err
    assert f"committed {answer['dataset']}" in err  # the driver's own words
    assert "gives none: spark.executor.memoryOverhead=1184m, spark.sql.execution.arrow" in err
    assert yarn_etl.state(answer["application"]) == "SUCCEEDED"
    load_dataset(answer["dataset"])

    again = yarn_etl.config(**whole, spark={**CLUSTER, "queue": "no-such-queue"})
    code, second, err = yarn_etl.run(again)
    assert code == 0 and second["unchanged"] and second["application"] is None, err
    return answer


@marked(pytest.mark.full)
@pytest.mark.timeout(900)  # three ETLs
def test_client_mode_makes_the_same_dataset(yarn_etl):
    source = yarn_etl.put_rows(60)
    answer = cluster_mode(yarn_etl, source)
    # the packages are on HDFS by now, under their hashes: nothing is uploaded again
    other = yarn_etl.config(source=source, dedup={}, dataset=f"{yarn_etl.dataset}-client")
    code, client, err = yarn_etl.run(other)
    assert code == 0, err
    assert "uploading" not in err and f"application {client['application']}" in err
    assert client["hash"] == answer["hash"]
    one, two = (load_dataset(a["dataset"]).manifest.splits for a in (answer, client))
    assert {k: [s.crc32c for s in v] for k, v in one.items()} == {
        k: [s.crc32c for s in v] for k, v in two.items()
    }


@marked(pytest.mark.full)
def test_an_error_of_the_driver_in_the_cluster_comes_as_itself(yarn_etl):
    source = yarn_etl.put_rows(0, more=["only one label,a", "of two rows,a"])
    code, answer, err = yarn_etl.run(yarn_etl.config(source=source, spark=CLUSTER))
    assert code == 3 and answer["error"] == "DataError", err
    assert "at least two labels" in answer["what"] and "Traceback" not in err
    assert yarn_etl.left() == []


@marked(pytest.mark.full)
def test_the_error_has_the_cause_of_a_container_that_cannot_start(yarn_etl):
    conf = {"spark.driver.extraJavaOptions": "-javaagent:/no/such.jar"}
    config = yarn_etl.config(source=yarn_etl.put_rows(9), spark={**CLUSTER, "conf": conf})
    code, answer, err = yarn_etl.run(config)
    assert code == 5 and answer["error"] == "ClusterError", err
    assert "/no/such.jar" in answer["got"] and "yarn logs -applicationId" in answer["remedy"]
    assert answer["where"].startswith("application_") and "Traceback" not in err


@marked()
@pytest.mark.parametrize(
    ("mode", "number", "code"),
    [
        ("cluster", signal.SIGTERM, 143),
        pytest.param("cluster", signal.SIGINT, 130, marks=pytest.mark.full),
        pytest.param("client", signal.SIGTERM, 143, marks=pytest.mark.full),
        pytest.param("client", signal.SIGINT, 130, marks=pytest.mark.full),
    ],
)
def test_a_signal_kills_the_application(yarn_etl, mode, number, code):
    config = yarn_etl.config(source=yarn_etl.put_rows(4000), spark={"deploy_mode": mode})
    process = yarn_etl.start(config)
    try:
        wait_for(lambda: any("/_run-" in name for name in yarn_etl.left()), process)
        (application,) = yarn_etl.applications()
        process.send_signal(number)
        returned, answer, err = yarn_etl.finish(process)
    finally:
        process.kill()
    assert returned == code and answer["exit_code"] == code, err
    assert yarn_etl.state(application) == "KILLED"
    assert yarn_etl.left() == []


@marked(pytest.mark.full)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["cluster", "client"])
def test_a_run_goes_on_from_what_a_killed_driver_had_kept(yarn_etl, mode):
    """On HDFS, by another application; the first one's driver was killed with -9."""
    limits = json.dumps({"many_rows": 1, "scratch_file_rows": 500})
    in_a_script = limits.replace('"', '\\"')  # YARN writes it between double quotes
    conf = {"spark.yarn.appMasterEnv.HOWDAH_TEST_LIMITS": in_a_script}
    source = yarn_etl.put_rows(4000)
    config = yarn_etl.config(source=source, spark={"deploy_mode": mode, "conf": conf})

    def kept():
        for version in storage.list_dir(yarn_etl.dataset) if yarn_etl.left() else []:
            for entry in storage.list_dir(version.path):
                if entry.name.startswith("scratch-"):
                    names = [one.name for one in storage.list_dir(entry.path)]
                    if [n for n in names if n.startswith("encoded-") and n.endswith(".json")]:
                        return names
        return []

    process = yarn_etl.start(config, HOWDAH_TEST_LIMITS=limits)
    try:
        names = wait_for(kept, process)
        (application,) = yarn_etl.applications()
        if mode == "cluster":
            for pid in drivers(application):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()
    finally:
        process.kill()
    yarn_etl.cluster.end_applications()
    assert "rows.json" in names
    code, answer, err = yarn_etl.run(config, HOWDAH_TEST_LIMITS=limits)
    assert code == 0, err
    assert "continuing from the 4,000 rows that an unfinished run has read and split" in err
    assert answer["application"] != application
    whole(answer["dataset"], 4000)


def drivers(application):
    """Pids of the processes in an application's first container, in which the driver runs."""
    pids = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if f"{application.removeprefix('application')}_01_000001" in os.readlink(
                f"/proc/{pid}/cwd"
            ):
                pids.append(int(pid))
    return pids


@marked(pytest.mark.full)
def test_a_signal_before_the_application_is_known_leaves_none(yarn_etl):
    process = yarn_etl.start(yarn_etl.config(source=yarn_etl.put_rows(400), spark=CLUSTER))
    try:
        wait_for(yarn_etl.applications, process)
        process.send_signal(signal.SIGTERM)
        code, _, err = yarn_etl.finish(process)
    finally:
        process.kill()
    assert code == 143, err  # that no application is left is the fixture's to check


@marked(pytest.mark.full)
def test_a_queue_that_is_not_there_is_named(yarn_etl):
    spark = {**CLUSTER, "queue": "no-such-queue"}
    config = yarn_etl.config(source=yarn_etl.put_rows(9), spark=spark)
    code, answer, err = yarn_etl.run(config)
    assert code == 5 and "no-such-queue" in answer["got"], (answer, err)
    assert "data.spark.queue" in answer["remedy"] and "Traceback" not in err


@marked(pytest.mark.full)
@pytest.mark.parametrize("mode", ["client", "cluster"])
@pytest.mark.timeout(900)
def test_a_clusters_own_old_spark_runs_it(yarn_etl, old_spark_home, mode):
    source = yarn_etl.put_rows(60)
    spark = {"home": old_spark_home, "deploy_mode": mode}
    code, answer, err = yarn_etl.run(yarn_etl.config(source=source, dedup={}, spark=spark))
    assert code == 0, err
    assert sum(answer["rows"].values()) == 60
    assert yarn_etl.state(answer["application"]) == "SUCCEEDED"


@marked(pytest.mark.full)
@pytest.mark.timeout(600)
def test_a_java_of_our_own_runs_every_container(yarn_etl, tmp_path):
    """Packed as vendors pack it, in a folder: driver and executors run it and no other."""
    jre = tmp_path / "jre" / "jre-17"
    jre.parent.mkdir()
    java = os.path.realpath(yarn_etl.cluster.env["JAVA_HOME"])
    argv = [f"{java}/bin/jlink", "--add-modules", "ALL-MODULE-PATH", "--strip-debug"]
    subprocess.run([*argv, "--output", str(jre)], check=True)
    archive = shutil.make_archive(str(tmp_path / "jre"), "gztar", jre.parent)
    nodes = os.path.realpath(yarn_etl.cluster.directory)
    spark = {**CLUSTER, "java_archive": archive}
    process = yarn_etl.start(yarn_etl.config(source=yarn_etl.put_rows(300), spark=spark))
    seen = set()
    try:
        while process.poll() is None:
            seen |= containers(nodes)
            time.sleep(0.2)
        code, answer, err = yarn_etl.finish(process)
    finally:
        process.kill()
    assert code == 0, err
    assert sum(answer["rows"].values()) == 300
    assert len(seen) >= 2  # the driver's and an executor's
    assert all(program.endswith("/jre-17/bin/java") for _, program in seen), seen


def containers(nodes):
    """(pid, program) of the JVMs that run in a container's directory below `nodes`."""
    jvms = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            place, program = os.readlink(f"/proc/{pid}/cwd"), os.readlink(f"/proc/{pid}/exe")
            if place.startswith(nodes) and "/container_" in place and program.endswith("/java"):
                jvms.add((int(pid), program))
    return jvms


@pytest.mark.parametrize(
    ("name", "inside"),
    [("bin/java", ""), ("./bin/java", ""), ("jdk-17/bin/java", "jdk-17"), ("./j/bin/java", "j")],
)
@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_java_is_found_in_its_archive(tmp_path, kind, name, inside):
    path = str(tmp_path / f"java.{kind}")
    names = ["lib/server/libjvm.so", "deep/er/bin/java", name]
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as file:
            for one in names:
                file.writestr(one, b"")
    else:
        with tarfile.open(path, "w:gz") as file:
            for one in names:
                file.addfile(tarfile.TarInfo(one))
    assert shipping.java_inside(path) == inside


def test_an_archive_without_java_is_refused(tmp_path):
    path = tmp_path / "java.tar.gz"
    with tarfile.open(path, "w:gz") as file:
        file.addfile(tarfile.TarInfo("deep/er/bin/java"))
    with pytest.raises(ConfigError, match="holds no Java"):
        shipping.java_inside(str(path))
    path.write_bytes(b"no archive")
    with pytest.raises(ConfigError, match="holds no Java"):
        shipping.java_inside(str(path))


def _config(**data):
    return config_module.from_dict({"data": data})


def test_paths_of_this_machine_are_refused_on_yarn(tmp_path):
    config = _config(source="rows.csv", dataset="out", spark={"master": "yarn"})
    with pytest.raises(ConfigError) as caught:
        submit.run(config, progress=print)
    assert caught.value.where == "data.dataset, data.source"
    assert "rows.csv" in caught.value.got and "hdfs" in caught.value.remedy


def test_cluster_mode_needs_yarn_and_a_home_needs_a_spark(tmp_path):
    with pytest.raises(ConfigError, match="only YARN"):
        submit.run(_config(source="a.csv", spark={"deploy_mode": "cluster"}), progress=print)
    with pytest.raises(ConfigError, match="no Spark at"):
        submit.run(_config(source="a.csv", spark={"home": str(tmp_path)}), progress=print)


@pytest.fixture
def answered(tmp_path, monkeypatch):
    """Submit with a spark-submit whose application fails after its driver has written an answer:
    `answered(answer)` is the error that comes of it."""
    application, version = "application_17_0001", tmp_path / "data" / "v=0"
    monkeypatch.setattr(applications, "logs", lambda *_, **__: "java.lang.OutOfMemoryError: heap\n")
    monkeypatch.setattr(staging, "_SWEEP_SECONDS", 0.0)
    shipment = SimpleNamespace(staging=SimpleNamespace(directory=str(tmp_path)), conf={})
    monkeypatch.setattr(shipping, "ship", lambda *_: shipment)
    program = tmp_path / "bin" / "spark-submit"
    program.parent.mkdir()
    program.write_text(f"""#!/bin/sh
        for directory; do :; done
        cp {tmp_path}/answer.json "$directory"
        echo "INFO Application report for {application} (state: FAILED)"
        exit 1
    """)
    program.chmod(0o755)

    def run(error):
        (tmp_path / "answer.json").write_text(json.dumps({"error": error.as_dict()}))
        lease = {"host": "elsewhere", "pid": 1, "application": application}
        storage.write_whole(f"{version}/_run-0badcafe.json", json.dumps(lease).encode())
        storage.write_whole(f"{version}/train-00000-of-00001.0badcafe-3.tfrecord", b"half")
        config = _config(dataset=str(version.parent), spark={"master": "yarn", **CLUSTER})
        with pytest.raises(type(error)) as caught:
            submit._on_cluster(str(tmp_path), config, SimpleNamespace(files={}), {}, print)
        return caught.value

    run.application, run.version = application, version
    return run


def test_a_driver_that_outlives_its_jvm_to_answer_is_a_lost_container(answered):
    with pytest.raises(ClusterError) as gone:
        with translated("write the shards"):
            raise ConnectionRefusedError(111, "Connection refused")
    assert gone.value.where is None  # the driver cannot know more
    error = answered(gone.value)
    assert error.where == answered.application
    assert "Connection refused" in error.got and "OutOfMemoryError: heap" in error.got
    assert error.remedy.endswith(f"yarn logs -applicationId {answered.application}")
    assert not answered.version.exists()


def test_an_answer_that_names_a_place_keeps_it(answered):
    lost = ClusterError("Spark could not write", where="container container_17_0001_01_000002")
    error = answered(lost)
    assert error.as_dict() == lost.as_dict() and not answered.version.exists()
    bad = DataError("a row has no label", where="rows.csv:3")
    assert answered(bad).as_dict() == bad.as_dict()


def test_a_spark_in_a_directory_with_brackets_has_its_py4j(tmp_path):
    library = tmp_path / "spark[3]" / "python"
    (library / "lib").mkdir(parents=True)
    (library / "lib" / "py4j-0.10-src.zip").touch()
    paths = submit._environ(str(tmp_path / "spark[3]"), python=True)["PYTHONPATH"].split(os.pathsep)
    assert f"{library}/lib/py4j-0.10-src.zip" in paths


def test_a_blank_in_tmpdir_does_not_end_the_options_of_spark_submit(tmp_path, monkeypatch):
    (tmp_path / "my files").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "my files"))
    with submit._quiet({}) as env:
        log, _ = env["SPARK_SUBMIT_OPTS"].split()
        path = url2pathname(urlsplit(log.partition("=")[2]).path)
        assert storage.read_text(path) == submit.QUIET_LOG


def test_lines_of_several_threads_are_all_handed_on(tmp_path, monkeypatch):
    state, writing, go_on = driver._State(str(tmp_path)), threading.Event(), threading.Event()
    real = storage.write_whole

    def slow(path, data):
        writing.set()
        assert go_on.wait(60)
        real(path, data)

    monkeypatch.setattr(storage, "write_whole", slow)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(state.progress, "1")
        assert writing.wait(60)
        others = [pool.submit(state.progress, line) for line in "23"]
        time.sleep(0.2)  # both are at the lock, or come later: no line may be lost either way
        go_on.set()
        for one in (first, *others):
            one.result()
    assert sorted(storage.read_json(f"{tmp_path}/{driver.STATE}")["lines"]) == ["1", "2", "3"]


def test_a_driver_under_another_spark_hands_on_its_lines_and_its_end(tmp_path, monkeypatch):
    program = tmp_path / "python"
    program.write_text("""#!/bin/sh
        echo "reading the rows" >&2
        [ -e "$4/config.yaml" ] || exit 9
        [ -z "$ANSWER" ] || echo "$ANSWER" > "$4/answer.json"
        echo "the last line"
        exit 3
    """)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    bad = DataError("a row has no label", where="rows.csv:3")
    for answer, error, text in (
        (json.dumps({"error": bad.as_dict()}), DataError, "a row has no label"),
        ("", ClusterError, "without an answer"),
    ):
        monkeypatch.setenv("ANSWER", answer)
        lines = []
        with pytest.raises(error, match=text) as caught:
            submit._under(str(tmp_path), _config(), SimpleNamespace(files={}), lines.append)
        assert lines == ["reading the rows", "the last line"]
    assert caught.value.got == "exit code 3"


def test_a_cluster_that_says_where_its_jars_are_keeps_them(tmp_path):
    home = tmp_path / "spark"
    for name in ("bin", "jars", "conf"):
        (home / name).mkdir(parents=True)
    (home / "bin" / "spark-submit").touch()
    options = _config(spark={"home": str(home)}).data.spark
    assert not shipping._names_jars(options)
    (home / "conf" / "spark-defaults.conf").write_text("spark.yarn.archive hdfs:///spark.zip\n")
    assert shipping._names_jars(options)


def test_the_cause_is_found_in_a_log():
    log = """
LogContents:
26/01/01 10:00:00 INFO Executor: starting
Exception in thread "main" java.lang.ExceptionInInitializerError
\tat org.apache.spark.Something
Caused by: java.net.UnknownHostException: node-7: Name or service not known
"""
    assert "UnknownHostException: node-7" in applications.cause(log)
    memory = log + "java.lang.OutOfMemoryError: Java heap space\n"
    assert applications.cause(memory).endswith("OutOfMemoryError: Java heap space")
    assert applications.cause("all is well") is None
    wrapped = """
org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:53)
Caused by: java.io.IOException: Failed to connect to node-7/10.0.0.7:4040
"""
    assert applications.cause(wrapped).endswith("Failed to connect to node-7/10.0.0.7:4040")
    text = "Reason: Container from a bad node: container_e17_1700000000000_0001_01_000002 on host"
    assert applications.failed_container(text) == "container_e17_1700000000000_0001_01_000002"
