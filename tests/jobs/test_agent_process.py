"""An agent's training process, and what becomes of it when the agent cannot hear it any more."""

import signal
import socket
import subprocess
import sys

import psutil
import pytest

from howdah.core.processes import how_ended
from howdah.errors import ClusterError
from howdah.jobs.agent import facts
from howdah.jobs.training_process import TrainingProcess
from tests.support.waiting import wait_until

SAYS = """
import os, socket, time
socket.socket(fileno=int(os.environ["HOWDAH_LINK_FD"])).sendall(b'{"type": "ready"}\\n')
time.sleep(600)
"""


def test_a_process_whose_listener_fails_is_ended_and_its_end_reported(tmp_path, capfd):
    def heard(number, message):
        raise KeyError("a defect")

    ended = []
    process = TrainingProcess(
        3,
        [sys.executable, "-c", SAYS],
        {"HOWDAH_STACKS": str(tmp_path / "stacks")},
        str(tmp_path),
        on_message=heard,
        on_end=lambda number, code: ended.append((number, code)),
    )
    wait_until(lambda: ended)
    assert ended == [(3, -9)]
    assert not process.alive
    assert "thread channel-3 failed: KeyError" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("number", "text"), [(signal.SIGKILL, "signal SIGKILL"), (signal.SIGRTMIN + 3, "signal 37")]
)
def test_an_end_by_any_signal_has_a_description(number, text):
    """SIGRTMIN + 3 asks for stacks, and ends a process that has no handler for it yet."""
    with subprocess.Popen(["sleep", "60"]) as process:
        process.send_signal(number)
    assert how_ended(process.returncode) == text
    assert how_ended(3) == "exit code 3"


FORGETS = """
import faulthandler, os, signal, sys, time
file = open(sys.argv[1], "w")
faulthandler.register(signal.SIGRTMIN + 3, file=file)
os.remove(sys.argv[1])
print("ready", flush=True)
time.sleep(600)
"""


def test_stacks_whose_file_was_removed_are_none(tmp_path):
    path = str(tmp_path / "stacks")
    words = [sys.executable, "-c", FORGETS, path]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        try:
            diagnosis = facts.diagnose(process.pid, path)
        finally:
            process.kill()
    assert diagnosis["stacks"] == []


def test_an_interface_is_found_by_each_of_its_addresses():
    assert facts.interface_of("127.0.0.1") == facts.interface_of("127.0.0.7") == "lo"
    for name, addresses in psutil.net_if_addrs().items():
        for one in addresses:
            if one.family in (socket.AF_INET, socket.AF_INET6):
                assert facts.interface_of(one.address) == name
    with pytest.raises(ClusterError, match="no network interface has 192\\.0\\.2\\.77") as caught:
        facts.interface_of("192.0.2.77")
    assert "lo 127.0.0.1" in caught.value.got
