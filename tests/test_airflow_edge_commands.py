"""Howdah's hook and its runner by SSH: what runs on an edge node, and how it ends."""

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from tests.edge_node import SSHD, EdgeNode
from tests.guarded import ask, other_howdah, running, wait_for_start
from tests.waiting import wait_until

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
        told = edge.connection(**ssh)
        connection("edge", told.pop("extra"), **told)
        extra = {
            "ssh_conn_id": "edge", "command": command, "run_root": "hdfs:///runs",
            "environment": environment or {},
        }  # fmt: skip
        return HowdahHook(connection("howdah_edge", extra))

    return make


def test_a_command_runs_on_the_edge_node(remote, edge):
    lines = []
    told = remote().run(
        ["config", "check", "--json"], config={"run": {"name": "far"}}, on_line=lines.append
    )
    assert told["run"]["name"] == "far"
    wait_until(lambda: not edge.sessions())


def test_a_failure_on_the_edge_node_is_told_as_itself(remote):
    from howdah.airflow.failures import HowdahCommandRefused

    lines = []
    with pytest.raises(HowdahCommandRefused, match=r"did you mean run\.name") as caught:
        remote().run(["config", "check", "--json"], config={"run": {"nme": 1}},
                     on_line=lines.append)  # fmt: skip
    assert caught.value.code == 2
    assert any("1 problem in stdin" in line for line in lines)


@pytest.mark.parametrize(
    ("how", "said", "again"),
    [
        ({"command": "/nowhere/howdah"}, "there is no howdah program", False),
        ({"command": "other-version"}, "version 9.9.0", False),
        ({"key": "stranger"}, "does not let Airflow log in", False),
        ({"host_key": "stranger"}, "host key is not the one", False),
        ({"port": 1}, "cannot be reached by SSH", True),
    ],
)
def test_an_edge_node_that_cannot_be_used(remote, tmp_path, how, said, again, monkeypatch):
    from airflow.sdk.exceptions import AirflowFailException

    from howdah.airflow.failures import HowdahCommandFailed

    if how.get("command") == "other-version":
        how = {"command": other_howdah(tmp_path)}
    with pytest.raises(HowdahCommandFailed) as caught:
        remote(**how).run(["doctor", "--json"])
    assert said in str(caught.value)
    assert "127.0.0.1" in str(caught.value)
    assert isinstance(caught.value, AirflowFailException) != again


def test_a_lost_connection_ends_the_command_there(remote, edge, endless):
    from howdah.airflow.failures import HowdahCommandRefused

    asking, raised = ask(remote(), endless)
    edge.lose_connections()
    asking.join(60)
    assert "the connection was lost" in str(raised[0])
    assert not isinstance(raised[0], HowdahCommandRefused)
    wait_until(lambda: not running(endless))


def test_a_network_that_swallows_everything_ends_the_command_there(
    remote, edge, endless, monkeypatch
):
    """No pipe closes then: the guard misses the signs of life."""
    from howdah.airflow import runners
    from howdah.airflow.runner_ssh import SshRunner

    monkeypatch.setattr(runners, "_BEAT_SECONDS", 0.2)
    monkeypatch.setattr(SshRunner, "silence_seconds", 3.0)
    asking, raised = ask(remote(), endless)
    sessions = edge.sessions()
    for pid in sessions:
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: not running(endless))
    assert asking.is_alive()  # nobody has told it yet
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


def test_nothing_secret_is_in_a_command_line_and_it_is_blotted_out_of_lines(
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
                words = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            assert secret.encode() not in words
    command = max(running(endless))
    assert secret.encode() in Path(f"/proc/{command}/environ").read_bytes()
    made.cancel()
    asking.join(60)

    from howdah.airflow.hook import blotted

    said = {"what": f"it says {secret}", "tokens": 7, "all": [("here", f"{secret}!")]}
    assert blotted(said) == {"what": "it says ***", "tokens": 7, "all": [("here", "***!")]}
