"""Howdah's hook and its runner by SSH: what runs on an edge node, and how it ends."""

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from tests.support.airflow.edge_node import SSHD, EdgeNode
from tests.support.airflow.guarded import ask, other_howdah, running, wait_for_start
from tests.support.waiting import wait_until

pytestmark = pytest.mark.airflow

HOWDAH = str(Path(sys.executable).parent / "howdah")


@pytest.fixture(scope="module")
def edge(tmp_path_factory):
    if SSHD is None:
        pytest.fail("sshd is missing: `make setup` installs openssh-server")
    directory = tmp_path_factory.mktemp("edge")
    node = EdgeNode(directory, {"HOWDAH_CACHE": str(directory / "cache")})
    yield node
    node.stop()


@pytest.fixture
def remote(edge, connection, monkeypatch):
    """A hook whose commands run on the edge node."""
    from howdah.airflow.hook import HowdahHook

    def make(command=HOWDAH, environment=None, **ssh):
        fields = edge.connection(**ssh)
        connection("edge", fields.pop("extra"), **fields)
        extra = {
            "ssh_conn_id": "edge", "command": command, "run_root": "hdfs:///runs",
            "environment": environment or {},
        }  # fmt: skip
        return HowdahHook(connection("howdah_edge", extra))

    return make


def test_a_command_runs_on_the_edge_node(remote, edge):
    lines = []
    checked = remote().run(
        ["config", "check", "--json"], config={"run": {"name": "far"}}, on_line=lines.append
    )
    assert checked["run"]["name"] == "far"
    wait_until(lambda: not edge.sessions())


def test_a_failure_on_the_edge_node_has_its_own_message(remote):
    from howdah.airflow.failures import HowdahCommandRefused

    lines = []
    with pytest.raises(HowdahCommandRefused, match=r"did you mean run\.name") as caught:
        remote().run(["config", "check", "--json"], config={"run": {"nme": 1}},
                     on_line=lines.append)  # fmt: skip
    assert caught.value.code == 2
    assert any("1 problem in stdin" in line for line in lines)


@pytest.mark.parametrize(
    ("how", "message", "again"),
    [
        ({"command": "/nowhere/howdah"}, "the howdah program does not exist", False),
        ({"command": "other-version"}, "version 9.9.0", False),
        ({"key": "stranger"}, "refuses Airflow's login", False),
        ({"host_key": "stranger"}, "host key is not the known one", False),
        ({"port": 1}, "cannot be reached by SSH", True),
    ],
)
def test_an_edge_node_that_cannot_be_used(remote, tmp_path, how, message, again, monkeypatch):
    from airflow.sdk.exceptions import AirflowFailException

    from howdah.airflow.failures import HowdahCommandFailed

    if how.get("command") == "other-version":
        how = {"command": other_howdah(tmp_path)}
    with pytest.raises(HowdahCommandFailed) as caught:
        remote(**how).run(["doctor", "--json"])
    assert message in str(caught.value)
    assert "127.0.0.1" in str(caught.value)
    assert isinstance(caught.value, AirflowFailException) != again


@pytest.mark.parametrize(
    "extra", [{"no_host_key_check": True}, {"no_host_key_check": "true", "host_key": None}]
)
def test_an_edge_node_whose_host_key_is_not_checked_gets_nothing(edge, connection, extra):
    """Any machine that answers at its address would get the Connection's environment."""
    from howdah.airflow.failures import HowdahCommandRefused
    from howdah.airflow.hook import HowdahHook

    before, ssh = set(edge.sessions()), edge.connection()
    fields = {k: v for k, v in (ssh.pop("extra") | {"host_key": None} | extra).items() if v}
    connection("edge", fields, **ssh)
    settings = {"ssh_conn_id": "edge", "command": HOWDAH, "run_root": "hdfs:///runs"}
    hook = HowdahHook(connection("howdah_unchecked", settings))
    with pytest.raises(HowdahCommandRefused, match="does not check the edge node's host key"):
        hook.run(["doctor", "--json"])
    assert set(edge.sessions()) <= before


def test_a_policy_is_sent_to_the_edge_node_and_applied_there(remote, tmp_path, monkeypatch):
    """Through the guard's stdin; plain paths are judged where they lead there."""
    from howdah.airflow.failures import HowdahCommandRefused

    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "out").symlink_to("/etc")
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"roots: [{tmp_path}/in]\n")
    monkeypatch.setenv("HOWDAH_AIRFLOW_POLICY", str(policy))
    arguments = ["config", "check", "--json"]
    good = {"data": {"source": f"{tmp_path}/in/rows.csv"}}
    assert remote().run(arguments, config=good)["data"]["source"] == good["data"]["source"]
    assert remote().run(arguments, config={"run": {"directory": "hdfs:///runs/d/r"}})
    for source in ("/etc/passwd", f"{tmp_path}/in/out/passwd"):
        with pytest.raises(HowdahCommandRefused, match="rule `roots`") as caught:
            remote().run(arguments, config={"data": {"source": source}})
        assert str(policy) in str(caught.value)
    with pytest.raises(HowdahCommandRefused, match="rule `keys`"):
        remote().run(arguments, config={"data": {"spark": {"conf": {"spark.jars": "x"}}}})
    with pytest.raises(HowdahCommandRefused, match="rule `masters`"):
        remote().run(
            ["predict", "--model", "hdfs:///m", "--source", "hdfs:///s", "--output", "hdfs:///o",
             "--master", "spark://attacker:7077", "--json"],
        )  # fmt: skip


def test_a_lost_connection_ends_the_command_there(remote, edge, endless):
    from howdah.airflow.failures import HowdahCommandRefused

    asking, raised = ask(remote(), endless)
    edge.lose_connections()
    asking.join(60)
    assert "the connection was lost" in str(raised[0])
    assert not isinstance(raised[0], HowdahCommandRefused)
    wait_until(lambda: not running(endless))


def test_a_network_that_drops_all_packets_ends_the_command_there(
    remote, edge, endless, monkeypatch
):
    """No pipe closes then: the guard misses the signs of life."""
    from howdah.airflow.runner import runners
    from howdah.airflow.runner.ssh import SshRunner

    monkeypatch.setattr(runners, "_HEARTBEAT_SECONDS", 0.2)
    monkeypatch.setattr(SshRunner, "silence_seconds", 3.0)
    asking, raised = ask(remote(), endless)
    sessions = edge.sessions()
    for pid in sessions:
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: not running(endless))
    assert asking.is_alive()  # it has not noticed yet
    edge.lose_connections()
    asking.join(60)
    assert "the connection was lost" in str(raised[0])


def test_cancel_ends_a_command_on_the_edge_node(remote, endless):
    made = remote()
    asking, raised = ask(made, endless)
    made.cancel()
    asking.join(60)
    assert raised[0].code == 143
    assert not running(endless)


def test_secrets_are_not_in_a_command_line_and_are_masked_in_lines(
    remote, endless, capfd, monkeypatch
):
    """The variable reaches the program on the edge node, through stdin."""
    secret = "hush-hush-42"
    made = remote(environment={"TRACKING_PASSWORD": secret})
    asking = threading.Thread(target=lambda: made.call(endless, on_line=lambda line: None))
    asking.start()
    wait_for_start(endless)
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                arguments = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            assert secret.encode() not in arguments

    def reached():
        environments = [Path(f"/proc/{pid}/environ").read_bytes() for pid in running(endless)]
        return any(secret.encode() in environment for environment in environments)

    wait_until(reached)
    made.cancel()
    asking.join(60)

    from howdah.airflow.hook import masked

    answer = {"what": f"it says {secret}", "tokens": 7, "all": [("here", f"{secret}!")]}
    assert masked(answer) == {"what": "it says ***", "tokens": 7, "all": [("here", "***!")]}
