"""The mini cluster's real daemons: clients, kills and restarts, start and stop, loopback only."""

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from howdah.errors import ClusterError
from tests.runs.jobs import yarn_applications
from tools.minicluster import MiniCluster, daemons

pytestmark = pytest.mark.hadoop


def start_process(directory, *words: str) -> subprocess.Popen:
    """`python -m tools.minicluster start` in a process of its own."""
    argv = [sys.executable, "-m", "tools.minicluster", "start", "-d", str(directory)]
    return subprocess.Popen(
        [*argv, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def sleepers(directory: str) -> list[int]:
    """Process ids of the cluster's containers that sleep; others may end meanwhile."""
    pids = []
    for pid in daemons.marked(directory):
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.name() == "sleep" and process.cmdline()[-1:] == ["1000"]:
                pids.append(pid)
    return pids


def listening(directory: str) -> dict[str, set[str]]:
    """{address: names of processes} of everything of a cluster that takes connections."""
    by_address: dict[str, set[str]] = {}
    for pid in daemons.marked(directory):
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            for connection in process.net_connections(kind="inet"):
                if connection.status == psutil.CONN_LISTEN or connection.type == 2:  # UDP
                    by_address.setdefault(connection.laddr.ip, set()).add(f"{pid} {process.name()}")
    return by_address


# -------------------------------------------------------------------------------------- clients
def test_command_line_clients_work(healthy_cluster, hdfs_dir, tmp_path):
    cluster = healthy_cluster
    (tmp_path / "übung.txt").write_text("some text\n")
    cluster.run("hdfs", "dfs", "-put", str(tmp_path / "übung.txt"), hdfs_dir)
    assert cluster.run("hadoop", "fs", "-cat", f"{hdfs_dir}/übung.txt").stdout == "some text\n"
    assert "/user" in cluster.run("hdfs", "dfs", "-ls", "/").stdout  # fs.defaultFS
    nodes = cluster.run("yarn", "node", "-list").stdout
    assert nodes.count("RUNNING") == 2
    jars = cluster.run("yarn", "classpath", "--glob").stdout.strip().split(":")
    assert jars[0] == cluster.conf_dir
    common = f"hadoop-common-{cluster.plan.hadoop}.jar"
    assert any(os.path.basename(path) == common for path in jars)
    assert all(os.path.exists(path) for path in jars)


def test_an_application_runs_and_yarn_logs_prints_its_logs(healthy_cluster):
    cluster = healthy_cluster
    application = yarn_applications.submit(cluster, "echo from-$((40 + 2))", queue="batch")
    yarn_applications.wait_for_state(cluster, application, "FAILED")
    listed = cluster.run("yarn", "application", "-list", "-appStates", "FAILED").stdout
    assert application in listed and "batch" in listed

    def logs() -> str:  # they are moved to HDFS when the application is over
        return cluster.run("yarn", "logs", "-applicationId", application, check=False).stdout

    yarn_applications.wait_for(lambda: "from-42" in logs(), logs)


def test_status_and_env_say_where_all_is(healthy_cluster):
    status = healthy_cluster.status()
    states = {name: daemon["state"] for name, daemon in status["daemons"].items()}
    states.pop("metastore")  # there only where another test has asked for it
    assert set(states.values()) == {"running"} and len(states) == 8
    assert healthy_cluster.hdfs_url == status["hdfs"]
    assert healthy_cluster.env["PATH"].startswith(healthy_cluster.exports()["PATH"])


# ----------------------------------------------------------------------- killing and restarting
@pytest.mark.full  # in every run by our clients: tests/storage/test_hdfs.py
@pytest.mark.parametrize("end", ["kill", "stop"])
@pytest.mark.parametrize("name", ["namenode", "datanode-1"])
def test_files_outlive_hdfs_daemons(healthy_cluster, hdfs_dir, name, end, tmp_path):
    cluster = healthy_cluster
    (tmp_path / "file").write_bytes(os.urandom(100_000))
    cluster.run("hdfs", "dfs", "-put", str(tmp_path / "file"), hdfs_dir)
    before = cluster.records[name].pid
    getattr(cluster, end)(name)
    assert cluster.status()["daemons"][name]["state"] == "stopped"
    cluster.start(name)
    assert cluster.records[name].pid != before
    cluster.run("hdfs", "dfs", "-get", f"{hdfs_dir}/file", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == (tmp_path / "file").read_bytes()


@pytest.mark.full
def test_containers_outlive_yarn_daemons(healthy_cluster):
    cluster = healthy_cluster
    application = yarn_applications.submit(cluster, "sleep 1000")

    def containers() -> list[int]:
        return sleepers(cluster.directory)

    try:
        yarn_applications.wait_for(
            containers, lambda: yarn_applications.state(cluster, application)
        )
        before = containers()
        for name in ("resourcemanager", "nodemanager-0", "nodemanager-1"):
            cluster.kill(name)
            cluster.start(name)
            assert yarn_applications.state(cluster, application) == "ACCEPTED"
            assert containers() == before
    finally:
        cluster.end_applications()
    assert yarn_applications.state(cluster, application) == "KILLED"
    yarn_applications.wait_for(lambda: not containers(), containers)


def test_the_log_server_comes_back(healthy_cluster):
    healthy_cluster.kill("historyserver")
    healthy_cluster.start("historyserver")
    assert healthy_cluster.status()["daemons"]["historyserver"]["state"] == "running"


@pytest.mark.full
def test_restore_undoes_pauses_deaths_settings_and_safe_mode(healthy_cluster, hdfs_dir):
    cluster = healthy_cluster
    limit = {"dfs.namenode.fs-limits.max-component-length": "12"}  # as long as hdfs_dir's name
    cluster.reconfigure("namenode", {"hdfs-site": limit})
    long_name = f"{hdfs_dir}/more-than-twelve"
    assert (
        "is exceeded: limit=12"
        in cluster.run("hdfs", "dfs", "-mkdir", long_name, check=False).stderr
    )
    cluster.run("hdfs", "dfsadmin", "-safemode", "enter")
    cluster.pause("nodemanager-0")
    assert cluster.status()["daemons"]["nodemanager-0"]["state"] == "paused"
    os.kill(cluster.records["datanode-2"].pid, signal.SIGKILL)  # not through the class
    with pytest.raises(ClusterError, match="the datanode-2 has ended"):
        cluster.wait_healthy("datanode-2")
    cluster.restore()
    cluster.wait_healthy()
    cluster.run("hdfs", "dfs", "-mkdir", long_name)


@pytest.mark.full
def test_a_node_whose_disk_is_full_says_so(healthy_cluster, monkeypatch):
    cluster, key = healthy_cluster, "yarn.nodemanager.disk-health-checker.max-disk-utilization"
    full = {f"{key}-per-disk-percentage": "0.1"}
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "_wait", functools.partial(cluster._wait, timeout=30))
        with pytest.raises(ClusterError) as caught:
            cluster.reconfigure("nodemanager-0", {"yarn-site": full})
    assert "nodemanager-0: unhealthy: " in caught.value.got
    assert "used space above threshold of 0.1%" in caught.value.got
    daemon_states = cluster.status()["daemons"]
    assert "cannot use nodemanager-0" in json.dumps(daemon_states["resourcemanager"])
    cluster.restore()


def test_a_paused_namenode_does_not_answer_until_resumed(healthy_cluster):
    cluster = healthy_cluster
    cluster.pause("namenode")
    argv = ["hdfs", "dfs", "-ls", "/"]
    waiting = subprocess.Popen(argv, env=cluster.env, stdout=subprocess.PIPE, text=True)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(timeout=3)
    cluster.resume("namenode")
    assert "/user" in waiting.communicate()[0]


# ----------------------------------------------------------------- an own one: start, stop, wipe
@pytest.mark.full  # all tests on daemons start one by the same code
def test_a_cluster_started_on_the_command_line(tmp_path):
    """Start, loopback only, second start, wipe, stop with a container: one cluster for all."""
    place = tmp_path / "cluster"
    starting = start_process(place, "--metastore", "--json")
    cluster = MiniCluster(place)
    try:
        out, err = starting.communicate()
        assert starting.returncode == 0, err
        status = json.loads(out)
        assert status["was_running"] is False
        assert status["metastore_uri"] == cluster.metastore_uri
        # A shell as a user would have it.
        script = (
            f'eval "$({sys.executable} -m tools.minicluster env -d {place})"\n'
            "hdfs dfs -ls / && yarn application -list"
        )
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
        assert done.returncode == 0 and "Total number of applications" in done.stdout, done.stderr

        addresses = listening(cluster.directory)
        assert addresses.keys() == {"127.0.0.1"}, addresses
        assert len(addresses["127.0.0.1"]) == 9

        again = start_process(place, "--json")
        out, err = again.communicate()
        assert again.returncode == 0 and json.loads(out)["was_running"] is True, err
        other = start_process(place, "--kerberos", "--port", "namenode=1", "--json")
        out, err = other.communicate()
        assert other.returncode == 2 and "Kerberos True, namenode 1" in err, err
        with pytest.raises(ClusterError, match="already runs in this directory"):
            cluster.start()

        cluster.make_dir("/other/below")
        yarn_applications.submit(cluster, "sleep 1000")
        cluster.wipe()
        listed = cluster.run("hdfs", "dfs", "-ls", "-C", "/").stdout.split()
        assert "/other" not in listed and "/tmp" in listed
        assert cluster.run("yarn", "application", "-list").stdout.count("application_") == 0

        application = yarn_applications.submit(cluster, "exec env -i sleep 1000")

        def sleeping() -> list[int]:
            return sleepers(cluster.directory)

        yarn_applications.wait_for(sleeping, lambda: yarn_applications.state(cluster, application))
        pids = daemons.marked(cluster.directory)
        ports = list(cluster.plan.ports.values())

        def silent() -> list[str]:
            return [name for name, port in cluster.plan.ports.items() if not daemons.listens(port)]

        # Not all are open as soon as a daemon serves: an administrator's comes last.
        yarn_applications.wait_for(lambda: not silent(), silent)
        argv = [sys.executable, "-m", "tools.minicluster", "stop", "-d", str(place)]
        subprocess.run([*argv, "--remove"], check=True)
        assert not [pid for pid in pids if daemons.process_start(pid)]
        assert not [port for port in ports if daemons.listens(port)]
        assert not place.exists()
    finally:
        daemons.end_all(cluster.directory, grace=1.0)


def test_the_error_has_the_cause_of_a_daemon_that_dies_in_start_and_all_others_end(tmp_path):
    cluster = MiniCluster(tmp_path / "cluster", say=lambda line: None)
    setting = {"yarn.resourcemanager.scheduler.class": "no.such.Scheduler"}
    with pytest.raises(ClusterError) as caught:
        cluster.start(extra={"yarn-site": setting})
    assert caught.value.what == "the resourcemanager has ended"
    assert "no.such.Scheduler" in caught.value.got
    assert os.path.exists(caught.value.where)
    assert not cluster.is_running()
    assert {daemon["state"] for daemon in cluster.status()["daemons"].values()} == {"stopped"}


@pytest.mark.parametrize(
    ("signum", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.full)],
)
def test_a_start_that_is_interrupted_leaves_no_process(tmp_path, signum, code):
    cluster = MiniCluster(tmp_path / "cluster")
    starting = start_process(cluster.directory)
    yarn_applications.wait_for(cluster.is_running, starting.poll)
    starting.send_signal(signum)
    _, err = starting.communicate()
    assert starting.returncode == code, err
    assert not cluster.is_running()


def test_what_a_killed_start_left_is_ended_by_stop(tmp_path):
    cluster = MiniCluster(tmp_path / "cluster")
    starting = start_process(cluster.directory)
    yarn_applications.wait_for(cluster.is_running, starting.poll)
    starting.kill()
    starting.communicate()
    assert cluster.is_running()
    with pytest.raises(ClusterError, match="already runs in this directory"):
        cluster.start()
    cluster.stop()
    assert not cluster.is_running()


@pytest.mark.full
def test_data_outlives_a_stop_and_a_start(tmp_path):
    cluster = MiniCluster(tmp_path / "cluster")
    try:
        ports = cluster.start().plan.ports
        cluster.make_dir("/kept")
        cluster.stop()
        cluster.start(node_gpus=2)
        assert cluster.plan.ports == ports
        assert "/kept" in cluster.run("hdfs", "dfs", "-ls", "-C", "/").stdout
        nodes = yarn_applications.rest(cluster, "GET", "nodes")["nodes"]["node"]
        assert [node["totalResource"]["memory"] for node in nodes] == [6144, 6144]
        assert "yarn.io/gpu" in json.dumps(nodes)
    finally:
        cluster.stop(remove=True)
